package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/requeue"
)

// installation is a broker with the API in memory, whose notifications the benchmark sends itself.
type installation struct {
	*bench
	api   *apitest.Memory
	jobs  *apiclient.Client[job, done]
	names subject.Names
}

func newInstallation(b *testing.B) *installation {
	x := &installation{bench: newBench(b), names: subject.Names{Prefix: notify.DefaultPrefix}}
	x.api = apitest.NewMemory(func(context.Context, string, string, string) error { return nil })
	var err error
	x.jobs, err = apiclient.New[job, done](apiclient.Config{URL: "http://api", HTTP: x.api.Client()}, "jobs")
	require.NoError(b, err)
	require.NoError(b, notify.Streams(b.Context(), x.conn(), notify.Config{}, "jobs"))
	return x
}

// create makes n objects, named as the next fill will name them.
func (x *installation) create(n int) {
	for i := range n {
		_, err := x.jobs.Create(x.b.Context(), fmt.Sprintf("o%d", x.next+i+1), job{Value: 1})
		require.NoError(x.b, err)
	}
	require.NoError(x.b, x.api.Flush(x.b.Context()))
}

// run runs replicas of a controller; the function that it returns stops them.
func (x *installation) run(replicas int, observe func(reconciler.Event), c reconciler.Controller) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i := range replicas {
		r, err := reconciler.New(reconciler.Config{
			NATS: x.conn(), API: "http://api", HTTP: x.api.Client(), Name: fmt.Sprint(i), Observer: observe, Logger: quiet,
		}, c)
		require.NoError(x.b, err)
		running.Go(func() {
			if err := r.Run(ctx); err != nil {
				x.b.Error(err)
			}
		})
	}
	return func() { cancel(); running.Wait() }
}

func noop(_ context.Context, o *jobObject) (reconciler.Result, error) {
	o.Status.Value = o.Spec.Value
	return reconciler.Result{}, nil
}

// BenchmarkWholePath compares reconciles of a function that does nothing, through broker and API (in memory), with the
// naive locked cycle that reads the object and stores its status in between.
func BenchmarkWholePath(b *testing.B) {
	for _, workers := range []int{1, 16, 256} {
		for _, replicas := range []int{1, 3} {
			b.Run(fmt.Sprintf("workers=%d/replicas=%d", workers, replicas), func(b *testing.B) {
				x := newInstallation(b)
				b.StopTimer()
				n := max(b.N, 2000)
				x.create(n)
				naive := x.naive(n, workers, replicas, x.readAndStore)
				x.create(n)
				x.fill(n, func(s string) string { return x.names.Fresh("jobs", s) })
				b.StartTimer()
				sdk := x.reconcileAll(n, workers, replicas)
				b.ReportMetric(sdk.perSecond(n), "reconciles/s")
				b.ReportMetric(naive.perSecond(n), "naive/s")
				b.ReportMetric(sdk.perSecond(n)/naive.perSecond(n), "vs-naive")
				b.ReportMetric(sdk.cpu.Seconds()/naive.cpu.Seconds(), "cpu-vs-naive")
				b.ReportMetric(float64(sdk.allocs)/float64(n), "allocs/reconcile")
				b.ReportMetric(float64(sdk.allocs)/float64(naive.allocs), "allocs-vs-naive")
			})
		}
	}
}

// readAndStore is what a reconcile does at the API.
func (x *installation) readAndStore(name string, fence uint64) {
	o, err := x.jobs.Get(x.b.Context(), name)
	if err == nil {
		status, _ := json.Marshal(done{Value: o.Spec.Value}) // always encodes
		_, err = x.jobs.PatchStatus(x.b.Context(), name, apiclient.StatusPatch{
			UID: o.UID, Fence: fence, Status: status,
			Reconciliation: &apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: o.Generation},
		})
	}
	if err != nil {
		x.b.Error(err)
	}
}

func (x *installation) reconcileAll(n, workers, replicas int) cost {
	var released atomic.Int64
	all := make(chan struct{})
	c := reconciler.For("jobs", noop)
	c.Workers = workers
	measured := metered(x.b)
	stop := x.run(replicas, func(e reconciler.Event) {
		if e.Step == reconciler.StepReleased && released.Add(1) == int64(n) {
			close(all)
		}
	}, c)
	<-all
	took := measured()
	stop()
	return took
}

// BenchmarkLatency measures the time from a notification to the call of the function in an idle installation, one object
// at a time, beside the time that a message takes through a stream to nats.go's own consumer.
func BenchmarkLatency(b *testing.B) {
	x := newInstallation(b)
	x.create(1)
	began := make(chan time.Time, 1)
	released := make(chan struct{}, 1)
	stop := x.run(1, func(e reconciler.Event) {
		switch e.Step {
		case reconciler.StepStarted:
			began <- time.Now()
		case reconciler.StepReleased:
			released <- struct{}{}
		}
	}, reconciler.For("jobs", noop))
	defer stop()
	publisher, err := notify.NewPublisher(x.conn(), notify.Config{})
	require.NoError(b, err)
	sdk := latencies(b, func() time.Duration {
		sent := time.Now()
		require.NoError(b, publisher.Publish(b.Context(), "jobs", "o1", "benchmark"))
		took := (<-began).Sub(sent)
		<-released
		return took
	})

	_, err = x.js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "floor", Subjects: []string{"floor"}, Retention: jetstream.WorkQueuePolicy})
	require.NoError(b, err)
	consumer, err := x.js.CreateConsumer(b.Context(), "floor", jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(b, err)
	cc, err := consumer.Consume(func(m jetstream.Msg) { began <- time.Now(); _ = m.Ack() })
	require.NoError(b, err)
	defer cc.Stop()
	floor := latencies(b, func() time.Duration {
		sent := time.Now()
		_, err := x.js.Publish(b.Context(), "floor", nil)
		require.NoError(b, err)
		return (<-began).Sub(sent)
	})
	for _, p := range []int{50, 99} {
		b.ReportMetric(float64(sdk(p).Microseconds()), fmt.Sprintf("p%d-us", p))
		b.ReportMetric(float64(sdk(p))/float64(floor(p)), fmt.Sprintf("p%d-vs-delivery", p))
	}
}

// latencies measures b.N times, and returns the percentiles.
func latencies(b *testing.B, measure func() time.Duration) func(percent int) time.Duration {
	all := make([]time.Duration, max(b.N, 200))
	for i := range all {
		all[i] = measure()
	}
	slices.Sort(all)
	return func(percent int) time.Duration { return all[(len(all)-1)*percent/100] }
}

// BenchmarkMemory measures what objects cost that wait or sleep: heap of broker and replica together, in bytes each.
func BenchmarkMemory(b *testing.B) {
	const n = 100_000
	for range b.N {
		x := newInstallation(b)
		c := reconciler.For("jobs", noop)
		stop := x.run(1, nil, c)
		queue, err := requeue.NewQueue(x.conn(), notify.DefaultPrefix)
		require.NoError(b, err)
		before := heap()
		var sleepers sync.WaitGroup
		for i := range 64 {
			sleepers.Go(func() {
				for j := i; j < n; j += 64 {
					if err := queue.At(b.Context(), "jobs", fmt.Sprintf("s%d", j), time.Now().Add(time.Hour), nil); err != nil {
						b.Error(err)
					}
				}
			})
		}
		sleepers.Wait()
		sleeping := heap()
		stop()
		x.fill(n, func(s string) string { return x.names.Fresh("jobs", s) })
		b.ReportMetric(float64(sleeping-before)/n, "B/sleeping")
		b.ReportMetric(float64(heap()-sleeping)/n, "B/pending")
	}
}

func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// BenchmarkIdle measures the processor time that an installation with nothing to do uses, broker included.
func BenchmarkIdle(b *testing.B) {
	const replicas, span = 3, 10 * time.Second
	for range b.N {
		x := newInstallation(b)
		stop := x.run(replicas, nil, reconciler.For("jobs", noop))
		<-time.After(2 * time.Second) // real time: the start is not what is measured
		measured := metered(b)
		<-time.After(span) // real time: it is what is measured
		b.ReportMetric(100*measured().cpu.Seconds()/span.Seconds()/replicas, "%cpu/replica")
		stop()
	}
}

// BenchmarkFetch shows that a fetch costs the same however many objects wait.
func BenchmarkFetch(b *testing.B) {
	const few, many, fetches = 1000, 500_000, 500
	for range b.N {
		x := newInstallation(b)
		consumer, err := x.js.Consumer(b.Context(), x.names.WorkStream(), "jobs")
		require.NoError(b, err)
		each := func() float64 {
			began := time.Now()
			for range fetches {
				batch, err := consumer.Fetch(1)
				require.NoError(b, err)
				for m := range batch.Messages() {
					require.NoError(b, m.DoubleAck(b.Context()))
				}
			}
			return float64(time.Since(began).Microseconds()) / fetches
		}
		fresh := func(s string) string { return x.names.Fresh("jobs", s) }
		x.fill(few, fresh)
		short := each()
		x.fill(many, fresh)
		long := each()
		b.ReportMetric(long, "us/fetch")
		b.ReportMetric(long/short, "vs-1000")
	}
}
