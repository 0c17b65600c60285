package jsapi

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

const (
	getMessage    = "$JS.API.STREAM.MSG.GET.W"
	deleteMessage = "$JS.API.STREAM.MSG.DELETE.W"
)

var (
	busy     = script.Error(400, 10164, "wrong last sequence")
	noStream = script.Error(404, 10059, "stream not found")
)

// scripted runs a test in virtual time, with a server that is told what to say.
func scripted(t *testing.T, test func(t *testing.T, s *script.Server, nc *nats.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, nc := script.New(t, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		test(t, s, nc)
	})
}

// bodies are what was sent to subjects that start with a text.
func bodies(s *script.Server, subject string) (found []string) {
	for _, m := range s.Sent(subject) {
		found = append(found, string(m.Data))
	}
	return found
}

// Two writes of a subject at once are no refusal: the server did not look at the expectation of the second one.
func TestBusySubjectIsTriedAgain(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		start := time.Now()
		s.Answer("w.", busy, busy, busy, `{"stream":"W","seq":12}`)
		seq, err := Publish(t.Context(), nc, &nats.Msg{Subject: "w.a", Header: Expect(4711), Data: []byte("x")})
		require.NoError(t, err)
		require.EqualValues(t, 12, seq)
		require.Equal(t, 7*time.Millisecond, time.Since(start), "ever more rarely")
		sent := s.Sent("w.")
		require.Len(t, sent, 4)
		for _, m := range sent {
			require.Equal(t, "x", string(m.Data))
			require.Equal(t, nats.Header{HeaderExpected: {"4711"}}, m.Header)
		}
	})
}

func TestSubjectThatStaysBusyIsGivenUp(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		start := time.Now()
		s.Answer("w.", busy)
		_, err := Publish(t.Context(), nc, &nats.Msg{Subject: "w.a"})
		require.ErrorIs(t, err, ErrBusy)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, Timeout, time.Since(start))
	})
}

// requests are all that ask the server, by their names.
var requests = map[string]func(ctx context.Context, nc *nats.Conn) error{
	"publish": func(ctx context.Context, nc *nats.Conn) error {
		_, err := Publish(ctx, nc, &nats.Msg{Subject: "w.a"})
		return err
	},
	"last": func(ctx context.Context, nc *nats.Conn) error {
		_, err := Last(ctx, nc, "W", "w.a")
		return err
	},
	"next": func(ctx context.Context, nc *nats.Conn) error {
		_, err := Next(ctx, nc, "W", "w.*", 3)
		return err
	},
	"get": func(ctx context.Context, nc *nats.Conn) error {
		_, err := Get(ctx, nc, "W", 3)
		return err
	},
	"delete": func(ctx context.Context, nc *nats.Conn) error { return Delete(ctx, nc, "W", 3) },
	"ack":    func(ctx context.Context, nc *nats.Conn) error { return ConfirmedAck(ctx, nc, "$JS.ACK.W.c.1") },
	"list": func(ctx context.Context, nc *nats.Conn) error {
		_, err := List(ctx, nc, "W", "w.*")
		return err
	},
}

// each runs a test of every request.
func each(t *testing.T, test func(t *testing.T, s *script.Server, nc *nats.Conn, request func(context.Context, *nats.Conn) error)) {
	t.Helper()
	for name, request := range requests {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) { test(t, s, nc, request) })
		})
	}
}

// What is kept for later would be sent when it may be wrong: a lock for a session that is over.
func TestNothingIsAskedWithoutAConnection(t *testing.T) {
	each(t, func(t *testing.T, s *script.Server, nc *nats.Conn, request func(context.Context, *nats.Conn) error) {
		s.Cut()
		synctest.Wait()
		start := time.Now()
		require.ErrorIs(t, request(t.Context(), nc), nats.ErrConnectionReconnecting)
		require.Zero(t, time.Since(start))
		s.SetDown(false)
		for !nc.IsConnected() {
			time.Sleep(time.Second)
		}
		synctest.Wait()
		require.Empty(t, s.Sent(""))
	})
}

func TestSilenceEndsARequestAfterItsTimeout(t *testing.T) {
	each(t, func(t *testing.T, s *script.Server, nc *nats.Conn, request func(context.Context, *nats.Conn) error) {
		s.Answer("", script.Silence)
		start := time.Now()
		err := request(t.Context(), nc)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "no answer")
		require.Equal(t, Timeout, time.Since(start))
		require.Len(t, s.Sent(""), 1)
	})
}

func TestNobodyToAskIsSaid(t *testing.T) {
	each(t, func(t *testing.T, _ *script.Server, nc *nats.Conn, request func(context.Context, *nats.Conn) error) {
		require.ErrorIs(t, request(t.Context(), nc), nats.ErrNoResponders)
	})
}

func TestRefusalIsAnError(t *testing.T) {
	each(t, func(t *testing.T, s *script.Server, nc *nats.Conn, request func(context.Context, *nats.Conn) error) {
		s.Answer("", noStream)
		if err := request(t.Context(), nc); t.Name() != "TestRefusalIsAnError/ack" { // whose answer is empty, or a word
			require.ErrorIs(t, err, ErrNoStream)
		}
		s.Answer("", "garbage")
		if err := request(t.Context(), nc); t.Name() != "TestRefusalIsAnError/ack" {
			require.ErrorContains(t, err, "decode answer")
		}
	})
}

// watched counts what follows it.
type watched struct {
	context.Context
	followers atomic.Int32
}

// AfterFunc is what a context that is made of this one registers with.
func (w *watched) AfterFunc(func()) func() bool {
	w.followers.Add(1)
	return func() bool {
		w.followers.Add(-1)
		return true
	}
}

// A runner's context lives for months, and has a request a millisecond: what a request hangs on it ends with the request.
func TestRequestLeavesNothingWithItsContext(t *testing.T) {
	each(t, func(t *testing.T, s *script.Server, nc *nats.Conn, request func(context.Context, *nats.Conn) error) {
		s.Answer("", noStream)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := &watched{Context: only{ctx}}
		_ = request(w, nc)
		require.Len(t, s.Sent(""), 1)
		require.Zero(t, w.followers.Load())
	})
}

// only hides that a context is one of the standard library, which would find a parent by itself.
type only struct{ ctx context.Context }

func (o only) Deadline() (time.Time, bool) { return o.ctx.Deadline() }
func (o only) Done() <-chan struct{}       { return o.ctx.Done() }
func (o only) Err() error                  { return o.ctx.Err() }
func (o only) Value(any) any               { return nil }

// stored is the answer to a request for a message.
func stored(t *testing.T, head string) string {
	t.Helper()
	b, err := json.Marshal(map[string]any{"message": map[string]any{
		"subject": "w.a", "seq": 12, "hdrs": []byte(head), "data": []byte("x"), "time": "2026-01-02T03:04:05Z",
	}})
	require.NoError(t, err)
	return string(b)
}

func TestReadMessage(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		s.Answer(getMessage, stored(t, "NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"), stored(t, ""), stored(t, "x"))
		want := &Message{
			Subject: "w.a", Sequence: 12, Header: nats.Header{HeaderOperation: {"DEL"}}, Data: []byte("x"),
			Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		}
		m, err := Last(t.Context(), nc, "W", "w.a")
		require.NoError(t, err)
		require.Equal(t, want, m)
		m, err = Next(t.Context(), nc, "W", "w.*", 4711)
		require.NoError(t, err)
		want.Header = nil
		require.Equal(t, want, m)
		_, err = Get(t.Context(), nc, "W", 4711)
		require.ErrorContains(t, err, "read 4711: decode headers")
		require.Equal(t, []string{`{"last_by_subj":"w.a"}`, `{"next_by_subj":"w.*","seq":4711}`, `{"seq":4711}`}, bodies(s, getMessage))
	})
}

// Who asks for the removal wants the message to be gone, and it is.
func TestDeletedMessageIsGone(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		s.Answer(deleteMessage, `{"success":true}`, script.Error(404, 10037, "no message found"), noStream)
		require.NoError(t, Delete(t.Context(), nc, "W", 7))
		require.NoError(t, Delete(t.Context(), nc, "W", 8))
		require.ErrorIs(t, Delete(t.Context(), nc, "W", 9), ErrNoStream)
		require.Equal(t, `{"no_erase":true,"seq":7}`, bodies(s, deleteMessage)[0])
	})
}

func TestConfirmedAckWaitsForTheServer(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		s.Answer("$JS.ACK.", "")
		require.NoError(t, ConfirmedAck(t.Context(), nc, "$JS.ACK.W.c.1"))
		require.Equal(t, []string{"+ACK"}, bodies(s, "$JS.ACK.W.c.1"))
	})
}

func TestRequestSendsAndDecodesOnlyWhatItIsGiven(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		s.Answer("$JS.API.INFO", `{"streams":3}`)
		var out struct{ Streams int }
		require.NoError(t, Request(t.Context(), nc, "$JS.API.INFO", nil, &out))
		require.Equal(t, 3, out.Streams)
		require.NoError(t, Request(t.Context(), nc, "$JS.API.INFO", nil, nil))
		require.Equal(t, []string{"", ""}, bodies(s, "$JS.API.INFO"))

		var wrong struct{ Streams string }
		err := Request(t.Context(), nc, "$JS.API.INFO", nil, &wrong)
		require.ErrorContains(t, err, "request $JS.API.INFO: decode answer: ")
		err = Request(t.Context(), nc, "$JS.API.INFO", func() {}, nil)
		require.ErrorContains(t, err, "request $JS.API.INFO: json: unsupported type")
		require.Len(t, s.Sent(""), 3, "what cannot be encoded is not sent")
	})
}
