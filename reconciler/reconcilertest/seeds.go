package reconcilertest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// RunSeeds runs the scenario n times, each a subtest ("seed_1" and so on), with whatever can go wrong at the same time. What
// does is drawn from the seed: how long each message takes ([RandomLatency]), how wrong the clock of each replica is, which of
// the two to five replicas is killed, stopped, cut off, frozen or healed when, which requests to the API and messages to the
// broker fail, and when Scenario.Change changes specs, which change back the next time. Four times in a run everything heals
// and must settle; at the end the same is checked as by [DisturbEverywhere]. Resync is disabled, as there.
//
// A seed that failed is repeated with go test -run TestName/seed_17. Goroutines that run in the same instant take turns as they
// like, so -count may be needed.
func RunSeeds(t *testing.T, s Scenario, n int) {
	t.Helper()
	for seed := 1; seed <= n; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			s.setup()
			Run(t, func(t *testing.T, w *World) {
				o := &ordeal{t: t, w: w, s: s, rng: rand.New(rand.NewPCG(uint64(seed), 1))}
				o.run(RandomLatency(uint64(seed)))
			})
		})
	}
}

// ordeal is one random run.
type ordeal struct {
	t      *testing.T
	w      *World
	s      Scenario
	rng    *rand.Rand
	alive  []*Replica
	starts int
	before []*apiclient.Raw // the objects before they were changed; nil if they are as they were
}

const (
	// rounds is how often a run settles, and steps how many random things happen before.
	rounds, steps = 4, 20
	// mostReplicas is how many replicas run at once.
	mostReplicas = 5
)

func (o *ordeal) run(latency Latency) {
	o.w.DisableResync(kindsOf(o.s.Controllers())...)
	o.start()
	o.s.before(o.t, o.w)
	o.w.SetLatency(latency)
	o.start()
	o.s.Do(o.t, o.w)
	for range rounds {
		for range steps {
			o.step()
			o.w.Advance(time.Duration(o.rng.ExpFloat64() * float64(time.Second)))
		}
		for _, r := range o.alive {
			r.Heal()
		}
		if len(o.alive) == 0 {
			o.start()
		}
		o.change()
		o.w.RunUntilSettled()
	}
	o.w.SetLatency(nil)
	o.w.RunUntilSettled()
	o.s.verify(o.t, o.w)
}

// change changes the specs, a few times within milliseconds: what a turn could lose is a change during its first steps, if
// no other follows.
func (o *ordeal) change() {
	if o.s.Change == nil {
		return
	}
	for range 1 + o.rng.IntN(4) {
		if o.before == nil {
			o.before = o.w.objects()
			o.s.Change(o.t, o.w)
		} else {
			o.w.revert(o.t, o.before)
			o.before = nil
		}
		o.w.Advance(time.Duration(o.rng.ExpFloat64() * float64(3*time.Millisecond)))
	}
}

func (o *ordeal) start() {
	o.starts++
	name := fmt.Sprintf("r%d", o.starts)
	if o.rng.IntN(2) == 0 {
		ahead := time.Duration((2*o.rng.Float64() - 1) * float64(20*time.Second))
		o.w.SetClock(name, Clock{Ahead: ahead, Drift: o.rng.NormFloat64() / 1000})
	}
	shortGrace := func(cfg *reconciler.Config) { cfg.Grace = 5 * time.Second }
	o.alive = append(o.alive, o.w.start(name, start{crash: &crash{}, change: shortGrace, beside: o.s.Beside}, o.s.Controllers()))
}

// step does one random thing.
func (o *ordeal) step() {
	if len(o.alive) == 0 {
		o.start()
		return
	}
	i := o.rng.IntN(len(o.alive))
	r := o.alive[i]
	switch o.rng.IntN(20) {
	case 0:
		r.Kill()
		o.alive = slices.Delete(o.alive, i, i+1)
	case 1:
		_ = r.Stop() // of a replica that may be cut off
		o.alive = slices.Delete(o.alive, i, i+1)
	case 2, 3:
		if len(o.alive) < mostReplicas {
			o.start()
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
		o.w.Fail(Fault{Times: 1 + o.rng.IntN(3), Lose: true})
	case 12:
		o.w.Fail(Fault{Times: 1 + o.rng.IntN(3), Status: 503, Delay: time.Second})
	case 13, 14:
		o.w.FailBroker(BrokerFault{Times: 1 + o.rng.IntN(3), Lose: o.rng.IntN(2) == 0})
	default:
		o.change()
	}
}
