package e2e

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/notify"
)

// TestNotificationThatComesBackIsDelivered: a broker that was killed has a notification again that was replaced and taken.
// A copy of its folder, made while it runs, is what a kill leaves.
func TestNotificationThatComesBackIsDelivered(t *testing.T) {
	folder := t.TempDir()
	nc := connectTo(t, folder)
	require.NoError(t, notify.Streams(t.Context(), nc, notify.Config{}, "widgets"))
	publisher, err := notify.NewPublisher(nc, notify.Config{})
	require.NoError(t, err)
	require.NoError(t, publisher.Publish(t.Context(), "widgets", "blue", "created"))
	require.NoError(t, publisher.PublishAlways(t.Context(), "widgets", "blue", "its holder died"))
	c, took := consume(t, nc)
	<-took
	n, err := c.Revive(t.Context(), free)
	require.NoError(t, err)
	require.Zero(t, n)

	for range 100 {
		nc := connectTo(t, copied(t, folder))
		if !cameBack(t, nc) {
			time.Sleep(50 * time.Millisecond) // real time: the server writes down in the background what was acknowledged
			continue
		}
		c, took := consume(t, nc)
		n, err := c.Revive(t.Context(), free)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		<-took // it is delivered
		return
	}
	require.Fail(t, "nothing comes back: have servers learned to remember what they removed?")
}

// free is the answer that no lock is held.
func free(context.Context, string, string) (bool, error) { return false, nil }

// TestNotificationThatComesBackAboveTheAckFloorIsDelivered: the same while an older notification is in flight for long,
// because its turn waits for a lock. That one is not queued again.
func TestNotificationThatComesBackAboveTheAckFloorIsDelivered(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		folder := t.TempDir()
		nc := connectTo(t, folder)
		require.NoError(t, notify.Streams(t.Context(), nc, notify.Config{}, "widgets"))
		publisher, err := notify.NewPublisher(nc, notify.Config{})
		require.NoError(t, err)
		stop := q.pullFrom(nc, notify.Config{}, 10)
		require.NoError(t, publisher.Publish(t.Context(), "widgets", "blocked", "created"))
		synctest.Wait()
		require.NoError(t, publisher.Publish(t.Context(), "widgets", "blue", "created"))
		require.NoError(t, publisher.PublishAlways(t.Context(), "widgets", "blue", "its holder died"))
		synctest.Wait()
		last := q.got[len(q.got)-1]
		require.Equal(t, "blue", last.Name)
		require.NoError(t, last.Take(t.Context()))
		stop()
		for range 100 {
			nc := connectTo(t, copied(t, folder))
			if !undelivered(t, nc) {
				advance(50 * time.Millisecond) // the server writes down in the background what was acknowledged
				continue
			}
			q.got = nil
			defer q.pullFrom(nc, notify.Config{}, 10)()
			c, err := notify.NewConsumer(t.Context(), nc, notify.ConsumerConfig{Kind: "widgets", MaxFree: 1, Free: func() int { return 0 }})
			require.NoError(t, err)
			blocked := func(_ context.Context, _, name string) (bool, error) { return name == "blocked", nil }
			for range 3 {
				n, err := c.Revive(t.Context(), blocked)
				require.NoError(t, err)
				require.Zero(t, n, "it may be in flight")
				advance(notify.AckWait / 3)
			}
			advance(time.Second)
			n, err := c.Revive(t.Context(), blocked)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			synctest.Wait()
			require.Contains(t, q.names(), "blue")
			return
		}
		require.Fail(t, "nothing comes back: have servers learned to remember what they removed?")
	})
}

// undelivered reports whether the stream has a notification of blue that its consumer has delivered, while an older one is
// in flight.
func undelivered(t *testing.T, nc *nats.Conn) bool {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	names := subject.Names{Prefix: notify.DefaultPrefix}
	s, err := js.Stream(t.Context(), names.WorkStream())
	require.NoError(t, err)
	c, err := s.Consumer(t.Context(), "widgets")
	require.NoError(t, err)
	m, err := s.GetLastMsgForSubject(t.Context(), names.Fresh("widgets", "blue"))
	info := c.CachedInfo()
	return err == nil && m.Sequence <= info.Delivered.Stream && m.Sequence > info.AckFloor.Stream && info.NumAckPending == 1
}

// connectTo starts a broker on a folder.
func connectTo(t *testing.T, folder string) *nats.Conn {
	t.Helper()
	s, err := broker.Start(folder, "")
	require.NoError(t, err)
	t.Cleanup(func() { broker.Stop(s) })
	nc, err := broker.Connect(s)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// consume runs a consumer until the test ends; took is closed when it has taken a notification.
func consume(t *testing.T, nc *nats.Conn) (c *notify.Consumer, took <-chan struct{}) {
	t.Helper()
	c, err := notify.NewConsumer(t.Context(), nc, notify.ConsumerConfig{Kind: "widgets", MaxFree: 4, Free: func() int { return 4 }})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ran, done := make(chan error, 1), make(chan struct{})
	go func() {
		ran <- c.Run(ctx, func(d *notify.Delivery) {
			if d.Take(ctx) == nil {
				close(done)
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ran)
	})
	return c, done
}

// copied copies a folder that is being written to.
func copied(t *testing.T, folder string) string {
	t.Helper()
	to := t.TempDir()
	require.NoError(t, filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a temporary file of the server, which has been renamed since it was listed
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the same
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), data, 0o600)
	}))
	return to
}

// cameBack reports whether the stream has a message that its consumer is past.
func cameBack(t *testing.T, nc *nats.Conn) bool {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	names := subject.Names{Prefix: notify.DefaultPrefix}
	s, err := js.Stream(t.Context(), names.WorkStream())
	require.NoError(t, err)
	c, err := s.Consumer(t.Context(), "widgets")
	require.NoError(t, err)
	m, err := s.GetLastMsgForSubject(t.Context(), names.Fresh("widgets", "blue"))
	return err == nil && m.Sequence <= c.CachedInfo().AckFloor.Stream
}
