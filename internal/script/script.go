// Package script is a nats-server that says what a test has told it to: refusals, silence and half an answer, which a real
// one gives only with much effort. It stores nothing but what it is told to keep (Keep). It runs in virtual time, and costs a test a fraction of a millisecond.
//
// What the server itself promises is not tested with it, but in internal/e2e with a real one.
package script

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// Answers that are not the body of a message.
const (
	// Silence is no answer.
	Silence = "silence"
	// NoResponders is what the server says when nothing listens to the subject of a request.
	NoResponders = "no responders"
)

const info = `INFO {"server_id":"script","version":"2.15.2","proto":1,"headers":true,"jetstream":true,"max_payload":1048576}`

// Error is the answer with which JetStream refuses a request.
func Error(code, errCode int, description string) string {
	return fmt.Sprintf(`{"error":{"code":%d,"err_code":%d,"description":%q}}`, code, errCode, description)
}

// Time is the server's, when it gave each answer and stored each message.
var Time = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Stored is the answer to a request for a stored message.
func Stored(subject string, sequence uint64, h nats.Header, data string) string {
	return stored(subject, sequence, h, data, Time)
}

func stored(subject string, sequence uint64, h nats.Header, data string, at time.Time) string {
	var head strings.Builder
	head.WriteString("NATS/1.0\r\n")
	for k, values := range h {
		for _, v := range values {
			head.WriteString(k + ": " + v + "\r\n")
		}
	}
	b, _ := json.Marshal(map[string]any{"message": map[string]any{ // strings, numbers and a time always encode
		"subject": subject, "seq": sequence, "hdrs": []byte(head.String() + "\r\n"), "data": []byte(data), "time": at,
	}})
	return string(b)
}

// Server is one side of a conversation. It is safe for concurrent use.
type Server struct {
	mu      sync.Mutex
	answers map[string][]string // by the start of the request
	streams []*stream
	sent    []*nats.Msg       // by clients
	subs    map[string]string // ids of subscriptions by their subjects, with a ".*" in the end or not
	out     chan []byte       // to the client
	down    bool
	cut     bool // once or more
	conn    net.Conn
}

// New returns a server and a connection to it, which ends with the test.
func New(t *testing.T, opts ...nats.Option) (*Server, *nats.Conn) {
	t.Helper()
	s := &Server{answers: map[string][]string{}}
	nc, err := nats.Connect("", append([]nats.Option{nats.InProcessServer(s), nats.MaxReconnects(-1)}, opts...)...)
	if err != nil {
		t.Fatal("connect to the scripted server:", err)
	}
	t.Cleanup(func() {
		nc.Close()
		if s.cut {
			// nats.go keeps timers in a sync.Pool (globalTimerPool, used when it has reconnected), and a timer of this bubble
			// must not be met in another. A pool is emptied by the second collection after its last use.
			runtime.GC()
			runtime.GC()
		}
	})
	return s, nc
}

// Answer tells what to answer to requests whose subject, or subject, a space and body, start with a text: one answer after the
// other, and the last one again and again. The longest text that fits counts. Requests that none fits get no responders.
func (s *Server) Answer(subject string, answers ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[subject] = answers
}

// Sent returns what clients sent to subjects, or subjects with bodies, that start with a text as Answer has it, in order.
func (s *Server) Sent(subject string) (found []*nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.sent {
		if strings.HasPrefix(line(m), subject) {
			found = append(found, m)
		}
	}
	return found
}

// line is what requests are told apart by.
func line(m *nats.Msg) string { return m.Subject + " " + string(m.Data) }

// Deliver sends a message to the subscription of an inbox, as the server does with an answer to a pull: the message has a
// subject of its own.
func (s *Server) Deliver(inbox string, m *nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deliver(inbox, m, "")
}

// Say sends a line of the protocol, "-ERR 'Permissions Violation …'" for example.
func (s *Server) Say(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out <- []byte(line + "\r\n")
}

// Cut ends the connection. The client is let in again only after SetDown(false).
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down, s.cut = true, true
	_ = s.conn.Close() // of a pipe: never fails
}

// SetDown says whether the server refuses connections.
func (s *Server) SetDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// InProcessConn makes the connection; nats.go calls it.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, io.ErrClosedPipe
	}
	client, server := net.Pipe()
	s.subs, s.conn, s.out = map[string]string{}, server, make(chan []byte, 10_000) // neither side may wait for the other
	go write(server, s.out)
	s.out <- []byte(info + "\r\n")
	go s.read(server, s.out)
	return client, nil
}

func write(conn net.Conn, out <-chan []byte) {
	for b := range out {
		_, _ = conn.Write(b) // fails when the client has gone; read ends this loop then
	}
}

// read handles what one connection brings until it ends.
func (s *Server) read(conn net.Conn, out chan []byte) {
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			break
		}
		words := strings.Fields(line)
		var payload []byte
		if words[0] == "PUB" || words[0] == "HPUB" {
			size, _ := strconv.Atoi(words[len(words)-1])
			payload = make([]byte, size+2)
			if _, err := io.ReadFull(in, payload); err != nil {
				break
			}
		}
		s.handle(words, payload)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = conn.Close() // of a pipe: never fails
	close(out)
	if s.out == out {
		s.out = make(chan []byte, 10_000) // what is said now is lost
	}
}

func (s *Server) handle(words []string, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch words[0] {
	case "PING":
		s.out <- []byte("PONG\r\n")
	case "SUB":
		s.subs[words[1]] = words[len(words)-1]
	case "PUB":
		s.publish(words[1:len(words)-1], nil, payload)
	case "HPUB":
		size, _ := strconv.Atoi(words[len(words)-2])
		h, _ := nats.DecodeHeadersMsg(payload[:size])
		s.publish(words[1:len(words)-2], h, payload[size:])
	}
}

// publish takes note of a message and answers it. Callers hold mu.
func (s *Server) publish(subjects []string, h nats.Header, payload []byte) {
	m := &nats.Msg{Subject: subjects[0], Header: h, Data: payload[:len(payload)-2]}
	if len(subjects) > 1 {
		m.Reply = subjects[1]
	}
	s.sent = append(s.sent, m)
	longest := ""
	for start := range s.answers {
		if strings.HasPrefix(line(m), start) && len(start) >= len(longest) {
			longest = start
		}
	}
	answer := NoResponders
	if left := s.answers[longest]; len(left) > 0 {
		answer = left[0]
		s.answers[longest] = left[min(1, len(left)-1):]
	} else if kept := s.answerKept(m); kept != "" {
		answer = kept
	}
	switch {
	case m.Reply == "", answer == Silence:
	case answer == NoResponders:
		s.deliver(m.Reply, &nats.Msg{Subject: m.Reply}, " 503")
	default:
		s.deliver(m.Reply, &nats.Msg{Subject: m.Reply, Data: []byte(answer)}, "")
	}
}

// deliver sends a message with a status, which has a space before it or is empty. Callers hold mu.
func (s *Server) deliver(inbox string, m *nats.Msg, status string) {
	id := s.subs[inbox]
	if end := strings.LastIndexByte(inbox, '.'); id == "" && end >= 0 {
		id = s.subs[inbox[:end]+".*"]
	}
	if id == "" {
		return
	}
	var head strings.Builder
	head.WriteString("NATS/1.0" + status + "\r\n")
	for k, values := range m.Header {
		for _, v := range values {
			head.WriteString(k + ": " + v + "\r\n")
		}
	}
	head.WriteString("\r\n")
	s.out <- fmt.Appendf(nil, "HMSG %s %s %s %d %d\r\n%s%s\r\n",
		m.Subject, id, m.Reply, head.Len(), head.Len()+len(m.Data), head.String(), m.Data)
}
