package reconcilertest

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"
)

// Message is a message between a replica and the broker, or a request to the API, or the answer to one.
type Message struct {
	// Replica is the name of the replica.
	Replica string
	// Subject is the subject at the broker, without what differs from run to run (ids of sessions, numbers of deliveries), or
	// the method and path of a request to the API, such as "PATCH /v1/objects/widgets/blue/status".
	Subject string
	// Answer is whether the message is on its way to the replica: an answer to Subject, or a notification.
	Answer bool
	// Nth counts the messages that have the other fields in common, from 1.
	Nth int
}

// Latency says how long a message is on its way. It is called once for each message, from many goroutines.
//
// Messages of one subject over one connection, and answers to one request, arrive in the order in which they were sent;
// others overtake each other. That is what a cluster does whose streams and consumers have leaders on different servers, and
// more than a single server does. What a replica has sent arrives although its link is cut or it dies meanwhile, and a
// request takes effect although the replica has stopped to wait for the answer.
type Latency func(Message) time.Duration

// SetLatency makes messages take time from now on; nil makes them arrive at once, which is the default.
func (w *World) SetLatency(l Latency) {
	if l == nil {
		w.setFate(nil)
		return
	}
	w.setFate(func(m Message) fate { return fate{delay: max(0, l(m))} })
}

// fate is what becomes of a message.
type fate struct {
	delay time.Duration
	lost  bool // it never arrives
	twice bool // it arrives twice, unless it is the answer to a request of the API
}

func (w *World) setFate(of func(Message) fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fates = of
}

// fate decides what becomes of a message that is sent now.
func (w *World) fate(replica, subject string, answer bool) fate {
	m := Message{Replica: replica, Subject: subject, Answer: answer}
	w.mu.Lock()
	of := w.fates
	if of != nil {
		w.sent[m]++
		m.Nth = w.sent[m]
	}
	w.mu.Unlock()
	if of == nil {
		return fate{}
	}
	return of(m)
}

// RandomLatency has four of five messages take less than 3 ms, and others up to 300 ms, 3 s, 12 s (longer than a lease) and
// 35 s (longer than every timeout), each ever more rarely. The times depend on the seed and the message alone, so they are
// the same in each run with one seed, in whatever order goroutines come to run.
func RandomLatency(seed uint64) Latency {
	return func(m Message) time.Duration {
		h := fnv.New64a()
		_, _ = fmt.Fprintf(h, "%s\x00%s\x00%t\x00%d", m.Replica, m.Subject, m.Answer, m.Nth) // never fails
		rng := rand.New(rand.NewPCG(seed, h.Sum64()))
		limit := 35 * time.Second
		switch x := rng.IntN(1000); {
		case x < 800:
			limit = 3 * time.Millisecond
		case x < 950:
			limit = 300 * time.Millisecond
		case x < 990:
			limit = 3 * time.Second
		case x < 997:
			limit = 12 * time.Second
		}
		return time.Duration(rng.Int64N(int64(limit)))
	}
}

// stable is a subject without what differs from run to run.
func stable(subject string) string {
	if strings.HasPrefix(subject, "$JS.ACK.") {
		// stream and consumer; then deliveries, sequences, a time
		return strings.Join(strings.SplitN(subject, ".", 5)[:min(4, strings.Count(subject, ".")+1)], ".")
	}
	if before, _, ok := strings.Cut(subject, ".session."); ok {
		return before + ".session"
	}
	return subject
}
