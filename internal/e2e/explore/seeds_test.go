// Package explore has no code, only the tests that search for what nobody thought of: random runs, and each message of a turn
// disturbed.
package explore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// job is what the objects of these tests want.
type job struct {
	Millis int
	Value  int
}

type done struct{ Value int }

type jobObject = apiclient.Object[job, done]

// seeds returns which seeds to run: EVENKEEL_SEEDS of them (a few) from EVENKEEL_SEED (1); the latter alone is one.
func seeds(t *testing.T) (from, to uint64) {
	t.Helper()
	read := func(name string, otherwise uint64) uint64 {
		if os.Getenv(name) == "" {
			return otherwise
		}
		n, err := strconv.ParseUint(os.Getenv(name), 10, 64)
		require.NoError(t, err, name)
		return n
	}
	few := uint64(15)
	if from = read("EVENKEEL_SEED", 0); from > 0 {
		few = 1
	}
	from = max(1, from)
	return from, from + read("EVENKEEL_SEEDS", few) - 1
}

// TestSeeds lets many replicas, some with clocks that are wrong, live through random latencies, writes, cuts, freezes,
// deaths, stops, faults and pauses of random objects, and then checks all promises. A seed that fails is printed;
// EVENKEEL_SEED=n replays its choices. Goroutines that run in the same instant still take turns as they like, so -count=20
// may be needed.
func TestSeeds(t *testing.T) {
	from, to := seeds(t)
	for seed := from; seed <= to; seed++ {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) { newChaos(t, w, seed).run() })
		})
		if !ok {
			t.Fatalf("replay with EVENKEEL_SEED=%d go test -run TestSeeds ./internal/e2e/explore", seed)
		}
	}
}

// chaos is one random run.
type chaos struct {
	t    *testing.T
	w    *reconcilertest.World
	seed uint64
	rng  *rand.Rand
	jobs *apiclient.Client[job, done]

	alive  []*reconcilertest.Replica
	starts int

	mu    sync.Mutex // functions run in many goroutines
	moods *rand.Rand
	calm  bool // functions succeed
}

func newChaos(t *testing.T, w *reconcilertest.World, seed uint64) *chaos {
	return &chaos{
		t: t, w: w, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), moods: rand.New(rand.NewPCG(seed, 2)),
		jobs: reconcilertest.Client[job, done](w, "jobs"),
	}
}

func (c *chaos) run() {
	c.w.DisableResync("jobs")
	c.w.SetLatency(reconcilertest.RandomLatency(c.seed))
	for range 2 + c.rng.IntN(3) {
		c.start()
		c.w.Advance(time.Duration(c.rng.IntN(1000)) * time.Microsecond)
	}
	for range 80 {
		c.step()
		if c.rng.IntN(2) == 0 {
			c.w.Advance(time.Duration(c.rng.ExpFloat64() * float64(2*time.Second)))
		}
	}
	c.w.SetLatency(nil)
	c.mu.Lock()
	c.calm = true
	c.mu.Unlock()
	for _, r := range c.alive {
		r.Heal()
	}
	if len(c.alive) == 0 {
		c.start()
	}
	for i := range objects {
		if _, err := c.jobs.Resume(c.t.Context(), name(i)); err != nil {
			require.ErrorIs(c.t, err, apiclient.ErrNotFound)
		}
	}
	calm := time.Now()
	c.w.RunUntilSettled()
	c.t.Logf("settled after %s", time.Since(calm))
	c.w.AssertPromises()
	c.assertStatus()
}

const objects = 8

func name(i int) string { return fmt.Sprintf("o%d", i) }

func (c *chaos) start() {
	c.starts++
	name := fmt.Sprintf("r%d", c.starts)
	if c.rng.IntN(2) == 0 {
		c.w.SetClock(name, reconcilertest.Clock{
			Ahead: time.Duration((2*c.rng.Float64() - 1) * float64(20*time.Second)), Drift: c.rng.NormFloat64() / 1000,
		})
	}
	c.alive = append(c.alive, c.w.StartWith(name, func(cfg *reconciler.Config) {
		cfg.Grace = 5 * time.Second
	}, c.controller()))
}

func (c *chaos) controller() reconciler.Controller {
	k := reconciler.ForWithCleanup("jobs", c.reconcile, c.reconcile)
	k.Workers = 3
	k.Timeout = time.Minute
	k.Backoff.Cap = 20 * time.Second
	return k
}

// reconcile takes a random time and ends in a random way.
func (c *chaos) reconcile(ctx context.Context, o *apiclient.Object[job, done]) (reconciler.Result, error) {
	c.mu.Lock()
	took, mood := time.Duration(c.moods.ExpFloat64()*float64(time.Second)), c.moods.IntN(10)
	if c.moods.IntN(20) == 0 {
		took += 30 * time.Second
	}
	calm := c.calm
	c.mu.Unlock()
	select {
	case <-ctx.Done():
		return reconciler.Result{}, context.Cause(ctx)
	case <-time.After(took):
	}
	o.Status = done{Value: o.Spec.Value}
	if calm {
		return reconciler.Result{}, nil
	}
	switch mood {
	case 0, 1:
		return reconciler.Result{}, errors.New("a passing fault")
	case 2:
		return reconciler.Result{}, reconciler.Throttled(errors.New("a quota"), 3*time.Second)
	case 3:
		return reconciler.Result{RequeueAfter: 2 * time.Second}, nil
	case 4:
		panic("a bug")
	}
	return reconciler.Result{}, nil
}

// step does one random thing to the world.
func (c *chaos) step() {
	if len(c.alive) == 0 {
		c.start()
		return
	}
	i := c.rng.IntN(len(c.alive))
	r := c.alive[i]
	switch c.rng.IntN(22) {
	case 0:
		r.Kill()
		c.alive = append(c.alive[:i], c.alive[i+1:]...)
	case 1:
		c.alive = append(c.alive[:i], c.alive[i+1:]...)
		_ = r.Stop() // of a replica that is cut off: its end is as unclean as it may be
	case 2, 3:
		if len(c.alive) < 5 {
			c.start()
		}
	case 4:
		r.Cut()
	case 5:
		r.CutNATS()
	case 6:
		r.CutAPI()
	case 7, 8, 9:
		r.Heal()
	case 10:
		r.Freeze()
	case 11:
		c.w.Fail(reconcilertest.Fault{Times: 1 + c.rng.IntN(3), Lose: true})
	case 12:
		c.w.Fail(reconcilertest.Fault{Times: 1 + c.rng.IntN(3), Status: 503, Delay: time.Second})
	case 13, 14:
		c.w.FailBroker(reconcilertest.BrokerFault{Times: 1 + c.rng.IntN(3), Lose: c.rng.IntN(2) == 0})
	default:
		c.write(name(c.rng.IntN(objects)))
	}
}

func (c *chaos) write(name string) {
	ctx := c.t.Context()
	var err error
	switch c.rng.IntN(10) {
	case 0:
		_, err = c.jobs.Delete(ctx, name)
	case 1:
		_, err = c.jobs.Retry(ctx, name)
	case 2:
		_, err = c.jobs.Pause(ctx, name)
	case 3:
		_, err = c.jobs.Resume(ctx, name)
	default:
		_, err = c.jobs.Put(ctx, name, job{Value: c.rng.IntN(1000)})
	}
	if err != nil && !errors.Is(err, apiclient.ErrNotFound) && !errors.Is(err, apiclient.ErrConflict) {
		require.NoError(c.t, err)
	}
}

// assertStatus checks what the record alone cannot tell: that the status is that of the last spec.
func (c *chaos) assertStatus() {
	for o, err := range c.jobs.All(c.t.Context()) {
		require.NoError(c.t, err)
		require.Nil(c.t, o.DeletedAt, "%s is still being deleted", o.Name)
		require.Equal(c.t, o.Spec.Value, o.Status.Value, o.Name)
	}
}
