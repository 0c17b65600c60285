package explore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/internal/broker/bubble"
	"github.com/evenkeel-io/evenkeel/lock"
)

// lockCall is an operation on one key, as porcupine sees it.
type lockCall struct {
	key    string
	client int
	end    bool // a release, or a lock that was lost; else it was taken
	fence  uint64
}

type lockState struct {
	holder int // client, or -1
	fence  uint64
}

// lockModel is a lock with fences that rise.
var lockModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range history {
			k := o.Input.(lockCall).key
			byKey[k] = append(byKey[k], o)
		}
		for _, p := range byKey {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return lockState{holder: -1} },
	Step: func(state, input, _ any) (bool, any) {
		s, in := state.(lockState), input.(lockCall)
		if in.end {
			return s.holder == in.client && s.fence == in.fence, lockState{-1, s.fence}
		}
		return s.holder < 0 && in.fence > s.fence, lockState{in.client, in.fence}
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

// cutter is a way to the broker that can be cut.
type cutter struct {
	s    *server.Server
	mu   sync.Mutex
	cut  bool
	open []net.Conn
}

func (c *cutter) InProcessConn() (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return nil, errors.New("cut")
	}
	conn, err := c.s.InProcessConn()
	if err == nil {
		c.open = append(c.open, conn)
	}
	return conn, err
}

func (c *cutter) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	if cut {
		for _, conn := range c.open {
			_ = conn.Close() // a pipe's never fails
		}
		c.open = nil
	}
}

// TestLockHistoryIsLinearizable has lockers whose links are cut at random contend for a few keys, and checks that what
// they saw could have happened to one lock per key, one operation after the other.
func TestLockHistoryIsLinearizable(t *testing.T) {
	from, to := seeds(t)
	for seed := from; seed <= min(to, from+199); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			lockHistory(t, seed)
		})
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

func lockHistory(t *testing.T, seed uint64) {
	dir := t.TempDir()
	var mu sync.Mutex
	var history []porcupine.Operation
	bubble.Run(t, func(t *testing.T) {
		s, err := broker.Start(dir, "")
		require.NoError(t, err)
		defer broker.Stop(s)
		admin, err := broker.Connect(s)
		require.NoError(t, err)
		defer admin.Close()
		js, err := jetstream.New(admin)
		require.NoError(t, err)
		require.NoError(t, lock.Ensure(t.Context(), js, "locks", 1, jetstream.MemoryStorage))

		var clock atomic.Int64 // the order of events, which virtual time is too coarse for
		note := func(call int64, c lockCall, end int64) {
			mu.Lock()
			defer mu.Unlock()
			history = append(history, porcupine.Operation{ClientId: c.client, Input: c, Call: call, Output: nil, Return: end})
		}
		const forEver = 1 << 40
		ctx, cancel := context.WithCancel(context.Background())
		var running, working sync.WaitGroup
		for i := range 4 {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			link := &cutter{s: s}
			nc, err := nats.Connect("", nats.InProcessServer(link), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
				nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
			require.NoError(t, err)
			defer nc.Close()
			locker, err := lock.New(nc, lock.Config{Bucket: "locks", Keys: []string{">"}, Recover: func(context.Context, string, string) error { return nil }})
			require.NoError(t, err)
			running.Go(func() { _ = locker.Run(ctx) })
			working.Go(func() {
				for range 40 {
					pass(time.Duration(rng.ExpFloat64() * float64(time.Second)))
					if rng.IntN(8) == 0 {
						link.set(true)
						pass(time.Duration(rng.IntN(15)) * time.Second)
						link.set(false)
					}
					key := fmt.Sprintf("k%d", rng.IntN(3))
					call := clock.Add(1)
					lk, err := locker.TryLock(ctx, key)
					if err == nil {
						note(call, lockCall{key: key, client: i, fence: lk.Fence()}, clock.Add(1))
						select {
						case <-lk.Context().Done():
						case <-time.After(time.Duration(rng.ExpFloat64() * float64(3*time.Second))):
						}
						end := clock.Add(1)
						lk.Unlock()
						note(end, lockCall{key: key, client: i, end: true, fence: lk.Fence()}, forEver)
					}
				}
			})
		}
		working.Wait()
		cancel()
		running.Wait()
	})
	require.Equal(t, porcupine.Ok, porcupine.CheckOperationsTimeout(lockModel, history, time.Minute), "seed %d: %v", seed, history)
}
