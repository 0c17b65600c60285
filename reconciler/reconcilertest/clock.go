package reconcilertest

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Clock is how the clock of a host differs from that of the World, which the broker and the API go by.
type Clock struct {
	// Ahead is by how much it is ahead at the start of the World; below zero, behind.
	Ahead time.Duration
	// Drift is by how much more it gets ahead, in parts of the time that passes: 0.001 is a second in a thousand.
	Drift float64
}

// SetClock gives the replicas of a name that start from now on a clock of their own. There is one clock in a bubble of
// virtual time, so it is not the replica's that changes: every time that it sends to the broker and the API, and that it
// gets from them, is translated on the way. That comes to the same, except that timers do not drift.
func (w *World) SetClock(replica string, c Clock) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clocks[replica] = c
}

func (w *World) clock(replica string) clock {
	w.mu.Lock()
	defer w.mu.Unlock()
	return clock{Clock: w.clocks[replica], began: w.began}
}

// clock translates times between the World's clock and a replica's.
type clock struct {
	Clock
	began time.Time // when it was ahead by Ahead
}

// out is the time that the replica's clock shows at a time of the World's.
func (c clock) out(t time.Time) time.Time {
	return t.Add(c.Ahead + time.Duration(c.Drift*float64(t.Sub(c.began))))
}

// in is the inverse of out.
func (c clock) in(t time.Time) time.Time {
	t = t.Add(-c.Ahead)
	return t.Add(-time.Duration(c.Drift / (1 + c.Drift) * float64(t.Sub(c.began))))
}

// same reports whether the clock is the World's.
func (c clock) same() bool { return c.Clock == Clock{} }

// Times in messages: the fields of objects and of their records, those of JetStream's answers, the times of schedules, the
// first sequence of a stream that is counted in microseconds, and when a notification was stored (the sixth number of a
// reply subject, NATS ADR-15).
var (
	fieldTimes = regexp.MustCompile(`("(?:\w+At|\w+Since|\w+Attempt|time|ts|created|\w+_ts)":\s*")(\d{4}-[^"]+)(")`)
	schedules  = regexp.MustCompile(`(Nats-Schedule: @at )(\d{4}-[^\r]+)(\r)`)
	sequences  = regexp.MustCompile(`("first_seq":\s*)(1\d{15})([,}])`)
	ackTimes   = regexp.MustCompile(`(\$JS\.ACK\.(?:[^. ]+\.){5})(1\d{18})(\.)`)
)

// translate translates each time in a text.
func translate(text []byte, by func(time.Time) time.Time) []byte {
	replace := func(re *regexp.Regexp, moved func(string) string) {
		text = re.ReplaceAllFunc(text, func(found []byte) []byte {
			p := re.FindSubmatch(found)
			return bytes.Join([][]byte{p[1], []byte(moved(string(p[2]))), p[3]}, nil)
		})
	}
	date := func(s string) string {
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil || t.IsZero() {
			return s
		}
		return by(t).Format(time.RFC3339Nano)
	}
	number := func(unit int64) func(string) string { // of nanoseconds
		return func(s string) string {
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				return s
			}
			return strconv.FormatInt(by(time.Unix(0, n*unit)).UnixNano()/unit, 10)
		}
	}
	replace(fieldTimes, date)
	replace(schedules, date)
	replace(sequences, number(1000))
	replace(ackTimes, number(1))
	return text
}

// translated is the frame with its times translated and its sizes set right.
func (f frame) translated(by func(time.Time) time.Time) frame {
	sizes := map[string]int{"PUB": 1, "HPUB": 2, "MSG": 1, "HMSG": 2}[f.verb()]
	if sizes == 0 {
		return f
	}
	line, body, _ := bytes.Cut(f, []byte("\r\n"))
	fields := bytes.Fields(translate(line, by))
	body = body[:len(body)-2] // without the last line break
	header := 0
	if sizes == 2 {
		header, _ = strconv.Atoi(string(fields[len(fields)-2])) // the server and the client write nothing else
	}
	head, payload := translate(body[:header:header], by), translate(body[header:], by)
	fields = fields[:len(fields)-sizes]
	if sizes == 2 {
		fields = append(fields, strconv.AppendInt(nil, int64(len(head)), 10))
	}
	fields = append(fields, strconv.AppendInt(nil, int64(len(head)+len(payload)), 10))
	return fmt.Appendf(nil, "%s\r\n%s%s\r\n", bytes.Join(fields, []byte(" ")), head, payload)
}
