package realtime

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

const (
	replicaEnv  = "EVENKEEL_E2E_REPLICA"  // the replica's name
	natsEnv     = "EVENKEEL_E2E_NATS"     // server URLs
	apiEnv      = "EVENKEEL_E2E_API"      // base URL
	replicasEnv = "EVENKEEL_E2E_REPLICAS" // of streams
	resyncEnv   = "EVENKEEL_E2E_RESYNC"   // a duration
)

// job is what the objects of these tests want: so much time, then a status.
type job struct {
	Millis int
	Value  int
}

type done struct {
	Value int
	By    string
}

type jobObject = apiclient.Object[job, done]

// quiet is for what would print beside the tests.
var quiet = logr.FromSlogHandler(slog.DiscardHandler)

// replica is the main program of a replica process. It prints each event as "step name fence attempt".
func replica() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	nc, err := nats.Connect(os.Getenv(natsEnv), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.RetryOnFailedConnect(true))
	if err != nil {
		return err
	}
	defer nc.Close()
	name := os.Getenv(replicaEnv)
	resync, err := time.ParseDuration(os.Getenv(resyncEnv))
	if err != nil {
		return err
	}
	var out sync.Mutex
	cfg := reconciler.Config{NATS: nc, API: os.Getenv(apiEnv), Name: name, Logger: quiet, Resync: resync, Observer: func(e reconciler.Event) {
		out.Lock()
		defer out.Unlock()
		fmt.Printf("%s|%s|%d|%d|%v|%s\n", e.Step, e.Name, e.Fence, e.Attempt, e.Err, e.Reason)
	}}
	if n := os.Getenv(replicasEnv); n != "" {
		if _, err := fmt.Sscan(n, &cfg.Replicas); err != nil {
			return err
		}
	}
	return reconciler.Run(ctx, cfg, reconciler.For("jobs", work(name)))
}

// work is the function of a replica.
func work(name string) reconciler.Func[job, done] {
	return func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
		select {
		case <-ctx.Done():
			return reconciler.Result{}, context.Cause(ctx)
		case <-time.After(time.Duration(o.Spec.Millis) * time.Millisecond):
		}
		o.Status = done{Value: o.Spec.Value, By: name}
		return reconciler.Result{}, nil
	}
}

// process is a replica in a process of its own.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd

	mu     sync.Mutex
	seen   []string
	waits  map[string]chan struct{} // step|name -> closed when seen
	exited chan error
}

// spawn starts a replica against the rig and sees to it that it ends with the test.
func (r *rig) spawn(name string) *process {
	r.t.Helper()
	self, err := os.Executable()
	require.NoError(r.t, err)
	p := &process{t: r.t, name: name, cmd: exec.Command(self), waits: map[string]chan struct{}{}, exited: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), replicaEnv+"="+name, natsEnv+"="+r.natsURL, apiEnv+"="+r.web.URL, fmt.Sprintf("%s=%d", replicasEnv, r.replicas),
		fmt.Sprintf("%s=%s", resyncEnv, r.resync))
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	require.NoError(r.t, err)
	require.NoError(r.t, p.cmd.Start())
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			p.note(lines.Text())
		}
		p.exited <- p.cmd.Wait()
	}()
	r.t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		if r.t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			r.t.Logf("%s saw:\n%s", name, strings.Join(p.seen, "\n"))
		}
	})
	return p
}

func (p *process) note(line string) {
	fields := strings.SplitN(line, "|", 3)
	if len(fields) < 3 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, line)
	if len(p.seen) > 200 {
		p.seen = p.seen[100:]
	}
	if c := p.waits[fields[0]+"|"+fields[1]]; c != nil {
		close(c)
		delete(p.waits, fields[0]+"|"+fields[1])
	}
}

// on returns a channel that is closed at the next such step of that object. Ask before what causes it.
func (p *process) on(step reconciler.Step, name string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := make(chan struct{})
	p.waits[string(step)+"|"+name] = c
	return c
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// await fails the test if nothing comes for much longer than any of these waits may take.
func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		require.FailNow(t, "waited a minute in vain", what)
	}
}
