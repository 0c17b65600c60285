package script

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// stream is what the server keeps of a stream: the last message of each subject.
type stream struct {
	name, prefix, config string
	sequence             uint64
	last                 map[string]kept
}

type kept struct {
	subject  string
	sequence uint64
	header   nats.Header
	data     []byte
	at       time.Time
}

// Keep has the server keep the last message of each subject that starts with a prefix, as a stream of that name and JSON
// configuration does, refuse writes that expect another one, and answer reads. What Answer says goes before. Nothing expires, and
// nothing is delivered but to those who subscribe to the very subject.
func (s *Server) Keep(name, prefix, config string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams = append(s.streams, &stream{name: name, prefix: prefix, config: config, last: map[string]kept{}})
}

// Kept are the subjects of the messages that are kept and start with a text, in order.
func (s *Server) Kept(start string) (subjects []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.streams {
		for subject := range st.last {
			if strings.HasPrefix(subject, start) {
				subjects = append(subjects, subject)
			}
		}
	}
	slices.Sort(subjects)
	return subjects
}

// Lose has the server lose what it keeps of subjects that start with a text.
func (s *Server) Lose(start string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.streams {
		maps.DeleteFunc(st.last, func(subject string, _ kept) bool { return strings.HasPrefix(subject, start) })
	}
}

// answerKept answers what concerns a stream that is kept; nothing does not. Callers hold mu.
func (s *Server) answerKept(m *nats.Msg) string {
	for _, st := range s.streams {
		switch {
		case strings.HasPrefix(m.Subject, st.prefix):
			answer := st.store(m)
			// Subscribers get it also if the stream refuses it, as from a real server.
			s.deliver(m.Subject, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}, "")
			return answer
		case m.Subject == "$JS.API.STREAM.INFO."+st.name:
			return st.info(m.Data)
		case m.Subject == "$JS.API.STREAM.MSG.GET."+st.name:
			return st.read(m.Data)
		}
	}
	return ""
}

func (st *stream) store(m *nats.Msg) string {
	if want := m.Header.Get("Nats-Expected-Last-Subject-Sequence"); want != "" {
		if is := st.last[m.Subject].sequence; want != strconv.FormatUint(is, 10) {
			return Error(400, 10071, fmt.Sprintf("wrong last sequence: %d", is))
		}
	}
	st.sequence++
	st.last[m.Subject] = kept{m.Subject, st.sequence, m.Header, m.Data, time.Now()}
	return fmt.Sprintf(`{"stream":%q,"seq":%d}`, st.name, st.sequence)
}

func (st *stream) info(body []byte) string {
	var req struct {
		Filter string `json:"subjects_filter"`
		Offset int    `json:"offset"`
	}
	_ = json.Unmarshal(body, &req) // without a body there is no filter
	found := map[string]int{}
	for subject := range st.last {
		if matches(subject, req.Filter) && req.Offset == 0 {
			found[subject] = 1
		}
	}
	subjects, _ := json.Marshal(found) // strings and numbers always encode
	return fmt.Sprintf(`{"total":%d,"ts":%q,"created":"2026-01-02T03:04:05Z","config":%s,"state":{"first_seq":1,"subjects":%s}}`,
		len(found), time.Now().UTC().Format(time.RFC3339Nano), st.config, subjects)
}

func (st *stream) read(body []byte) string {
	var req struct {
		Sequence uint64 `json:"seq"`
		Last     string `json:"last_by_subj"`
		Next     string `json:"next_by_subj"`
	}
	_ = json.Unmarshal(body, &req) // the client's own
	for _, k := range slices.SortedFunc(maps.Values(st.last), func(a, b kept) int { return cmp.Compare(a.sequence, b.sequence) }) {
		if k.subject == req.Last || req.Next != "" && k.sequence >= req.Sequence && matches(k.subject, req.Next) ||
			req.Last+req.Next == "" && k.sequence == req.Sequence {
			return stored(k.subject, k.sequence, k.header, string(k.data), k.at)
		}
	}
	return Error(404, 10037, "no message found")
}

// matches reports whether a subject matches a filter with the wildcards of NATS; none matches all.
func matches(subject, filter string) bool {
	if filter == "" {
		return true
	}
	tokens := strings.Split(subject, ".")
	for i, f := range strings.Split(filter, ".") {
		if f == ">" {
			return len(tokens) > i
		}
		if i >= len(tokens) || f != "*" && f != tokens[i] {
			return false
		}
	}
	return len(tokens) == strings.Count(filter, ".")+1
}
