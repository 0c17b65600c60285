package notify

import (
	"maps"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

const (
	fresh    = "evenkeel.n.widgets.2.a"
	later    = "evenkeel.r.widgets.2.a"
	schedule = "evenkeel.s.widgets.2.a"
)

// The headers are the promise: without the expectation an object loses its place in the queue, without the purge a requeue
// comes on top of the look.
func TestPublishesWithTheHeadersOfItsLane(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		s.Answer("evenkeel.", stored)
		p, err := NewPublisher(nc, Config{})
		require.NoError(t, err)
		cancels := nats.Header{"Nats-Schedule-Next": {"purge"}, "Nats-Scheduler": {schedule}}
		with := func(h nats.Header) nats.Header {
			maps.Copy(h, cancels)
			return h
		}

		require.NoError(t, p.Publish(t.Context(), "widgets", "a", "created"))
		require.NoError(t, p.PublishAlways(t.Context(), "widgets", "a", "its holder died"))
		put, err := p.PublishLater(t.Context(), "widgets", "a", "resync")
		require.NoError(t, err)
		require.True(t, put)
		sent := s.Sent("evenkeel.")
		require.Len(t, sent, 3)
		require.Equal(t, fresh, sent[0].Subject)
		require.Equal(t, with(nats.Header{"Nats-Expected-Last-Subject-Sequence": {"0"}, "Evenkeel-Reason": {"created"}}), sent[0].Header)
		require.Equal(t, fresh, sent[1].Subject)
		require.Equal(t, with(nats.Header{"Evenkeel-Given-Up": {"1"}, "Evenkeel-Reason": {"its holder died"}}), sent[1].Header)
		require.Equal(t, later, sent[2].Subject)
		require.Equal(t, nats.Header{"Nats-Expected-Last-Subject-Sequence": {"0"}, "Evenkeel-Reason": {"resync"}}, sent[2].Header)
	})
}

// One that is queued stands for both. Any other refusal is an error: the caller has to try again.
func TestPublishTellsQueuedFromFailed(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		p, err := NewPublisher(nc, Config{})
		require.NoError(t, err)
		s.Answer("evenkeel.", wrongSequence)
		require.NoError(t, p.Publish(t.Context(), "widgets", "a", ""))
		put, err := p.PublishLater(t.Context(), "widgets", "a", "")
		require.NoError(t, err)
		require.False(t, put)
		require.ErrorContains(t, p.PublishAlways(t.Context(), "widgets", "a", ""), "wrong last sequence", "it expects nothing")

		s.Answer("evenkeel.", script.Error(503, 10077, "maximum bytes exceeded"))
		require.ErrorIs(t, p.Publish(t.Context(), "widgets", "a", ""), ErrNoRoom)
		require.ErrorIs(t, p.PublishAlways(t.Context(), "widgets", "a", ""), ErrNoRoom)
		put, err = p.PublishLater(t.Context(), "widgets", "a", "")
		require.ErrorIs(t, err, ErrNoRoom)
		require.False(t, put)
	})
}

// A name that is no label would get onto a subject that no consumer reads.
func TestPublishRefusesWhatIsNoName(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		s.Answer("evenkeel.", stored)
		p, err := NewPublisher(nc, Config{})
		require.NoError(t, err)
		require.ErrorContains(t, p.Publish(t.Context(), "widgets", "a.b", ""), `name "a.b"`)
		require.ErrorContains(t, p.PublishAlways(t.Context(), "Widgets", "a", ""), `kind "Widgets"`)
		put, err := p.PublishLater(t.Context(), "widgets", "", "")
		require.False(t, put)
		require.ErrorContains(t, err, `name ""`)
		require.Empty(t, s.Sent("evenkeel."))
	})
}

// An object is owed nothing if it is looked at anyway. A retry that sleeps is none: a stop or a change does not wait for it.
func TestQueuedKnowsWhatIsLookedAtAnyway(t *testing.T) {
	for name, tt := range map[string]struct {
		answers []string
		want    bool
		err     string
	}{
		"nothing":                         {answers: []string{noMessage, noMessage}},
		"a fresh notification":            {answers: []string{script.Stored(fresh, 3, nil, "")}, want: true},
		"a retry sleeps":                  {answers: []string{noMessage, script.Stored(schedule, 3, nil, "")}},
		"a turn that was given up sleeps": {answers: []string{noMessage, script.Stored(schedule, 3, Again("died", 2), "")}, want: true},
		"it is not known":                 {answers: []string{unavailable}, err: "look for a notification of widgets/a"},
		"half of it is not known":         {answers: []string{noMessage, unavailable}, err: "look for a notification of widgets/a"},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
				s.Answer(getMessage, tt.answers...)
				p, err := NewPublisher(nc, Config{})
				require.NoError(t, err)
				got, err := p.Queued(t.Context(), "widgets", "a")
				require.Equal(t, tt.want, got)
				if tt.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tt.err)
				}
				asked := s.Sent(getMessage)
				require.Len(t, asked, len(tt.answers))
				require.JSONEq(t, `{"last_by_subj":"`+fresh+`"}`, string(asked[0].Data))
			})
		})
	}
}

// A prefix with a dot would make subjects that nothing parses.
func TestBadNamesAreRefusedBeforeAnythingIsSent(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		ctx, bad := t.Context(), Config{Prefix: "a.b"}
		_, err := NewPublisher(nc, bad)
		require.ErrorContains(t, err, `Config.Prefix: prefix "a.b"`)
		has, err := HasConsumer(ctx, nc, bad, "widgets")
		require.False(t, has)
		require.ErrorContains(t, err, `Config.Prefix: prefix "a.b"`)
		has, err = HasConsumer(ctx, nc, Config{}, "a.b")
		require.False(t, has)
		require.ErrorContains(t, err, `notify: kind "a.b"`)
		_, err = ListAside(ctx, nc, bad, "widgets")
		require.ErrorContains(t, err, `Config.Prefix: prefix "a.b"`)
		_, err = ListAside(ctx, nc, Config{}, "a.b")
		require.ErrorContains(t, err, `notify: kind "a.b"`)
		require.ErrorContains(t, DropAside(ctx, nc, bad, 1), `Config.Prefix: prefix "a.b"`)
		require.ErrorContains(t, Streams(ctx, nc, bad), `Config.Prefix: prefix "a.b"`)
		free := func() int { return 1 }
		for want, cfg := range map[string]ConsumerConfig{
			`Config.Prefix: prefix "a.b"`:     {Config: bad, Kind: "widgets", Free: free, MaxFree: 1},
			`ConsumerConfig.Kind: kind "a.b"`: {Kind: "a.b", Free: free, MaxFree: 1},
			"needs Free and MaxFree":          {Kind: "widgets", MaxFree: 1},
			"ConsumerConfig needs Free":       {Kind: "widgets", Free: free},
		} {
			_, err := NewConsumer(ctx, nc, cfg)
			require.ErrorContains(t, err, want)
		}
		require.Empty(t, s.Sent(""))
	})
}
