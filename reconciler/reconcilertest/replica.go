package reconcilertest

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/reconciler"
)

type rawJSON = json.RawMessage

// Replica is one process of a controller, with links to the broker and the API that the test controls.
type Replica struct {
	// Name is how the replica is called in the timeline.
	Name string
	// Runner is what runs in it.
	Runner *reconciler.Runner

	kinds []string
	w     *World
	nc    *nats.Conn
	nats  link
	api   link
	// outside leads to what is not of the World, see Request.
	outside link
	killed  bool
	dead    bool // nothing of it goes on the timeline any more; guarded by w.mu
	crash   *crash
	cancel  context.CancelFunc
	done    chan struct{}
	err     error // of Run, once done is closed
}

// Start starts a replica.
func (w *World) Start(name string, controllers ...reconciler.Controller) *Replica {
	w.t.Helper()
	return w.StartWith(name, nil, controllers...)
}

// StartWith starts a replica whose configuration change has been passed through.
func (w *World) StartWith(name string, change func(*reconciler.Config), controllers ...reconciler.Controller) *Replica {
	w.t.Helper()
	return w.start(name, start{crash: &crash{}, change: change}, controllers)
}

// start is how a replica starts.
type start struct {
	crash  *crash
	change func(*reconciler.Config)                   // nil: nothing
	beside func(*Replica) (run func(context.Context)) // nil: nothing
}

func (w *World) start(name string, how start, controllers []reconciler.Controller) *Replica {
	w.t.Helper()
	for _, other := range w.replicas {
		if other.Name == name && !other.ended() {
			w.t.Fatalf("start replica %s: one of that name runs already", name)
		}
	}
	r := &Replica{Name: name, kinds: kindsOf(controllers), w: w, crash: how.crash, done: make(chan struct{})}
	r.nats.init()
	r.api.init()
	r.outside.init()
	nc, err := w.connect(dialer{r})
	if err != nil {
		w.t.Fatalf("start replica %s: %v", name, err)
	}
	r.nc = nc
	cfg := reconciler.Config{
		NATS: nc, API: apiURL, HTTP: &http.Client{Transport: transport{r}}, Name: name, Storage: w.storage,
		Observer: r.observe, Logger: logr.FromSlogHandler(slog.DiscardHandler), // the timeline says it all
	}
	if how.change != nil {
		how.change(&cfg)
	}
	if r.Runner, err = reconciler.New(cfg, controllers...); err != nil {
		nc.Close()
		w.t.Fatalf("start replica %s: %v", name, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	var beside sync.WaitGroup
	if how.beside != nil {
		run := how.beside(r)
		beside.Go(func() { run(ctx) })
	}
	go func() {
		defer close(r.done)
		defer beside.Wait()
		defer cancel() // it may have stopped by itself
		r.err = r.Runner.Run(ctx)
	}()
	w.replicas = append(w.replicas, r)
	w.note(name, "starts")
	return r
}

// ended reports whether the replica was killed or has stopped.
func (r *Replica) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return r.killed
	}
}

// observe puts events on the timeline; of a replica that was killed there are none.
func (r *Replica) observe(e reconciler.Event) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if !r.dead {
		r.w.timeline = append(r.w.timeline, e)
	}
}

// Stop is SIGTERM: it returns what Run returned, after running functions have finished.
func (r *Replica) Stop() error {
	r.w.note(r.Name, "is told to stop")
	r.cancel()
	<-r.done
	return r.err
}

// Kill is kill -9: from this moment on nothing that the replica does reaches the broker or the API; what it has sent before
// may still be on its way ([World.SetLatency]). Its functions learn
// of it as of a lost link, through their context; what they do to the test's own variables until then is not undone.
func (r *Replica) Kill() {
	if r.killed {
		return
	}
	r.killed = true
	r.die()
}

// die makes the replica dead to the world, with what it sent before still arriving; it may be called from any goroutine.
func (r *Replica) die() {
	r.nats.drain()
	r.w.mu.Lock()
	r.dead = true
	r.w.timeline = append(r.w.timeline, reconciler.Event{Time: time.Now(), Step: StepTest, Replica: r.Name, Reason: stepKilled})
	r.w.mu.Unlock()
	r.nats.set(linkDead)
	r.api.set(linkDead)
	r.outside.set(linkDead)
	r.cancel()
}

// Cut cuts the links to the broker and to the API until Heal: connections break and cannot be made.
func (r *Replica) Cut() {
	r.CutNATS()
	r.CutAPI()
}

// CutNATS cuts the link to the broker alone.
func (r *Replica) CutNATS() {
	r.w.note(r.Name, "is cut off from the broker")
	r.nats.set(linkCut)
}

// CutAPI cuts the link to the API alone.
func (r *Replica) CutAPI() {
	r.w.note(r.Name, "is cut off from the API")
	r.api.set(linkCut)
}

// Heal mends cut links.
func (r *Replica) Heal() {
	r.w.note(r.Name, "is healed")
	r.nats.set(linkUp)
	r.api.set(linkUp)
	r.outside.set(linkUp)
}

// Freeze holds back everything that the replica sends and receives, until Thaw. Unlike a process that is stopped with
// SIGSTOP its own clock goes on, so it sees its lease end; what it sent before that arrives late all the same, which is
// what makes a frozen process dangerous.
func (r *Replica) Freeze() {
	synctest.Wait() // not in the middle of connecting, see dialer
	r.w.note(r.Name, "freezes")
	r.nats.set(linkFrozen)
	r.api.set(linkFrozen)
	r.outside.set(linkFrozen)
}

// Thaw lets a frozen replica go on; what was held back is delivered.
func (r *Replica) Thaw() {
	r.w.note(r.Name, "thaws")
	r.nats.set(linkUp)
	r.api.set(linkUp)
	r.outside.set(linkUp)
}
