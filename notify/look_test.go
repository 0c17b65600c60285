package notify

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

// Each of these may have lost notifications; whoever hears of one looks for what is owed.
func TestLookReportsWhatMayHaveLostNotifications(t *testing.T) {
	before := seen{created: time.Unix(100, 0), first: 5, replicas: 1}
	for name, tt := range map[string]struct {
		change   func(*streamInfo)
		before   func(*seen)
		sentinel string
		want     []string
		first    uint64 // what is known of the first message afterwards
	}{
		"nothing":       {first: 5},
		"made again":    {change: func(i *streamInfo) { i.Created, i.State.First = time.Unix(200, 0), 900 }, want: []string{"stream evenkeel_work was deleted and made again"}, first: 900},
		"replicated":    {change: func(i *streamInfo) { i.Config.Replicas = 2 }, want: []string{"stream evenkeel_work is on 2 servers now, it was on 1"}, first: 5},
		"limited":       {change: func(i *streamInfo) { i.Config.MaxMsgs = 10 }, want: []string{"stream evenkeel_work has limits, which drop notifications: max_msgs 10"}, first: 5},
		"still limited": {change: func(i *streamInfo) { i.Config.MaxMsgs = 10 }, before: func(s *seen) { s.limits = "max_msgs 10" }, first: 5},
		"unlimited":     {before: func(s *seen) { s.limits = "max_msgs 10" }, first: 5},
		"limited otherwise": {
			change: func(i *streamInfo) { i.Config.MaxMsgs = 20 }, before: func(s *seen) { s.limits = "max_msgs 10" }, first: 5,
			want: []string{"stream evenkeel_work has limits, which drop notifications: max_msgs 20"},
		},
		"purged":                         {change: func(i *streamInfo) { i.State.First = 6 }, sentinel: noMessage, want: []string{"stream evenkeel_work was purged"}, first: 6},
		"the sentinel was put again":     {change: func(i *streamInfo) { i.State.First = 6 }, sentinel: script.Stored("evenkeel.sentinel", 6, nil, ""), first: 6},
		"it is not known whether purged": {change: func(i *streamInfo) { i.State.First = 6 }, sentinel: unavailable, first: 5},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
				c, h := consumer(t, s, nc)
				if tt.sentinel != "" {
					s.Answer(getMessage, tt.sentinel)
				}
				i, known := &streamInfo{Created: before.created}, before
				i.Config.Replicas, i.State.First = 1, 5
				if tt.change != nil {
					tt.change(i)
				}
				if tt.before != nil {
					tt.before(&known)
				}
				now := c.compare(t.Context(), known, i)
				_, _, changed := h.drain()
				require.Equal(t, tt.want, changed)
				require.Equal(t, tt.first, now.first)
				require.Equal(t, i.Config.Replicas > 1, c.clustered())
				require.Len(t, s.Sent(getMessage), min(1, len(tt.sentinel)))
				if tt.sentinel != unavailable {
					c.compare(t.Context(), now, i)
					_, _, changed = h.drain()
					require.Empty(t, changed, "once")
				}
			})
		})
	}
}

func TestLookGoesOnWhateverTheServerSays(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, h := consumer(t, s, nc)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		looks := func() int { return len(s.Sent(streamInfoOf)) - 1 } // NewConsumer looks once
		go func() {
			defer close(done)
			c.lookAlways(ctx, c.opened)
		}()
		sleepFor(lookEvery)
		require.Equal(t, 1, looks(), "the first one comes at a random time, so that not all kinds look at once")
		sleepFor(2 * lookEvery)
		require.Equal(t, 3, looks())
		errs, missing, changed := h.drain()
		require.Empty(t, errs)
		require.Empty(t, changed)
		require.Zero(t, missing)

		s.Answer(streamInfoOf, noStream, unavailable)
		sleepFor(lookEvery)
		_, missing, _ = h.drain()
		require.Equal(t, 1, missing)
		sleepFor(lookEvery)
		errs, missing, _ = h.drain()
		require.Len(t, errs, 1)
		require.Contains(t, errs[0], "look at the stream: ")
		require.Zero(t, missing)
		before := looks()
		s.Cut()
		sleepFor(10 * lookEvery)
		require.Equal(t, before, looks())
		errs, _, _ = h.drain()
		require.Empty(t, errs, "without a connection there is nothing to say")
		s.Answer(streamInfoOf, `{"created":"2026-01-02T03:04:05Z","config":{"num_replicas":3},"state":{"first_seq":1}}`)
		s.SetDown(false)
		sleepFor(2 * lookEvery)
		_, _, changed = h.drain()
		require.Equal(t, []string{"stream evenkeel_work is on 3 servers now, it was on 1"}, changed)

		s.Answer(streamInfoOf, script.Silence)
		sleepFor(lookEvery)
		cancel()
		synctest.Wait()
		<-done
		errs, _, _ = h.drain()
		require.Empty(t, errs, "a stop is no trouble")
	})
}
