package e2e

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
)

// bench is a broker on file storage in real time.
type bench struct {
	b    *testing.B
	conn func() *nats.Conn
	js   jetstream.JetStream
	next int // names used so far: every object is fresh
}

func newBench(b *testing.B) *bench {
	s, err := broker.Start(b.TempDir(), "")
	require.NoError(b, err)
	b.Cleanup(func() { broker.Stop(s) })
	conn := func() *nats.Conn {
		nc, err := broker.Connect(s)
		require.NoError(b, err)
		b.Cleanup(nc.Close)
		return nc
	}
	js, err := jetstream.New(conn(), jetstream.WithPublishAsyncMaxPending(4000))
	require.NoError(b, err)
	return &bench{b: b, conn: conn, js: js}
}

// fill queues n notifications of objects that were never seen before.
func (x *bench) fill(n int, subj func(name string) string) {
	for range n {
		x.next++
		_, err := x.js.PublishAsync(subj("o"+strconv.Itoa(x.next)), nil)
		require.NoError(x.b, err)
	}
	<-x.js.PublishAsyncComplete()
}

// BenchmarkBrokerPath compares what a reconcile costs at the broker (pull, lock, take, release, with all promises) with
// two floors in the same run: consuming and acknowledging alone, and the naive locked cycle written with nats.go
// (consume, KV create, KV delete, ack), which survives no crash of its holder and coalesces nothing.
func BenchmarkBrokerPath(b *testing.B) {
	for _, workers := range []int{1, 16, 256} {
		for _, replicas := range []int{1, 3} {
			b.Run(fmt.Sprintf("workers=%d/replicas=%d", workers, replicas), func(b *testing.B) {
				x := newBench(b)
				b.StopTimer()
				n := max(b.N, 2000)
				ack := x.naive(n, workers, replicas, nil)
				naive := x.naive(n, workers, replicas, func(string, uint64) {})
				b.StartTimer()
				sdk := x.sdk(n, workers, replicas)
				b.ReportMetric(sdk.perSecond(n), "reconciles/s")
				b.ReportMetric(naive.perSecond(n), "naive/s")
				b.ReportMetric(ack.perSecond(n), "ack/s")
				b.ReportMetric(sdk.perSecond(n)/naive.perSecond(n), "vs-naive")
				b.ReportMetric(sdk.cpu.Seconds()/naive.cpu.Seconds(), "cpu-vs-naive")
				b.ReportMetric(float64(sdk.cpu.Microseconds())/float64(n), "cpu-us/op")
				b.ReportMetric(float64(sdk.allocs)/float64(naive.allocs), "allocs-vs-naive")
			})
		}
	}
}

// cost is what a number of cycles took: the wall clock, the processor time of client and server together, which says
// more on a busy machine, and their allocations.
type cost struct {
	wall, cpu time.Duration
	allocs    uint64
}

func (c cost) perSecond(n int) float64 { return float64(n) / c.wall.Seconds() }

// metered starts to measure; the function it returns ends it.
func metered(b *testing.B) func() cost {
	var before syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &before))
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	allocs := mem.Mallocs
	began := time.Now()
	return func() cost {
		wall := time.Since(began)
		var after syscall.Rusage
		require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &after))
		used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
		runtime.ReadMemStats(&mem)
		return cost{wall: wall, cpu: time.Duration(used), allocs: mem.Mallocs - allocs}
	}
}

// naive is the floor: nats.go's own consumer and key-value store. Without work there is no lock.
func (x *bench) naive(n, workers, replicas int, work func(name string, fence uint64)) cost {
	ctx := context.Background()
	name := "naive" + strconv.FormatBool(work != nil)
	_, err := x.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name + ".>"}, Retention: jetstream.WorkQueuePolicy, MaxMsgsPerSubject: 1,
	})
	require.NoError(x.b, err)
	defer func() { require.NoError(x.b, x.js.DeleteStream(ctx, name)) }()
	_, err = x.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: name, LimitMarkerTTL: time.Second})
	require.NoError(x.b, err)
	defer func() { require.NoError(x.b, x.js.DeleteKeyValue(ctx, name)) }()
	_, err = x.js.CreateConsumer(ctx, name, jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 20_000})
	require.NoError(x.b, err)
	x.fill(n, func(s string) string { return name + "." + s })

	var left atomic.Int64
	left.Store(int64(n))
	done := make(chan struct{})
	var stops []func()
	stop := metered(x.b)
	for range replicas {
		js, err := jetstream.New(x.conn())
		require.NoError(x.b, err)
		kv, err := js.KeyValue(ctx, name)
		require.NoError(x.b, err)
		consumer, err := js.Consumer(ctx, name, "c")
		require.NoError(x.b, err)
		messages := make(chan jetstream.Msg, workers)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for m := range messages {
					if work != nil {
						rev, err := kv.Create(ctx, m.Subject(), []byte("holder"), jetstream.KeyTTL(30*time.Second))
						if err == nil {
							work(strings.TrimPrefix(m.Subject(), name+"."), rev)
							err = kv.Delete(ctx, m.Subject(), jetstream.LastRevision(rev))
						}
						if err != nil {
							x.b.Error(err)
						}
					}
					if err := m.Ack(); err != nil {
						x.b.Error(err)
					}
					if left.Add(-1) == 0 {
						close(done)
					}
				}
			})
		}
		cc, err := consumer.Consume(func(m jetstream.Msg) { messages <- m }, jetstream.PullExpiry(2*time.Second), jetstream.PullHeartbeat(500*time.Millisecond))
		require.NoError(x.b, err)
		stops = append(stops, func() { cc.Drain(); <-cc.Closed(); close(messages); wg.Wait() })
	}
	<-done
	took := stop()
	for _, end := range stops {
		end()
	}
	return took
}

// sdk is the cycle of this project's packages.
func (x *bench) sdk(n, workers, replicas int) cost {
	ctx, cancel := context.WithCancel(context.Background())
	names := subject.Names{Prefix: notify.DefaultPrefix}
	require.NoError(x.b, notify.Streams(ctx, x.conn(), notify.Config{}, "widgets"))
	require.NoError(x.b, lock.Ensure(ctx, x.js, "locks", 1, jetstream.FileStorage))
	x.fill(n, func(s string) string { return names.Fresh("widgets", s) })

	var left atomic.Int64
	left.Store(int64(n))
	done := make(chan struct{})
	var running sync.WaitGroup
	stop := metered(x.b)
	for range replicas {
		nc := x.conn()
		ready := make(chan struct{})
		locker, err := lock.New(nc, lock.Config{Bucket: "locks", OnReady: sync.OnceFunc(func() { close(ready) })})
		require.NoError(x.b, err)
		running.Go(func() { _ = locker.Run(ctx) })
		var free atomic.Int64
		free.Store(int64(workers))
		consumer, err := notify.NewConsumer(ctx, nc, notify.ConsumerConfig{
			Kind: "widgets", MaxFree: workers,
			Free: func() int {
				if !locker.Ready() {
					return 0
				}
				return int(free.Load())
			},
		})
		require.NoError(x.b, err)
		work := make(chan *notify.Delivery, workers)
		for range workers {
			running.Go(func() {
				for {
					select {
					case <-ctx.Done():
						return
					case d := <-work:
						x.cycle(ctx, locker, d)
						free.Add(1)
						consumer.Wake()
						if left.Add(-1) == 0 {
							close(done)
						}
					}
				}
			})
		}
		running.Go(func() { _ = consumer.Run(ctx, func(d *notify.Delivery) { free.Add(-1); work <- d }) })
		<-ready
		consumer.Wake()
	}
	<-done
	took := stop()
	cancel()
	running.Wait()
	return took
}

func (x *bench) cycle(ctx context.Context, locker *lock.Locker, d *notify.Delivery) {
	lk, err := locker.TryLock(ctx, subject.LockKey(d.Kind, d.Name))
	if err != nil {
		x.b.Error(err)
		return
	}
	if err := d.Take(ctx); err != nil {
		x.b.Error(err)
	}
	lk.Unlock()
}
