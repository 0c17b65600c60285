package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/pgtest"
	"github.com/evenkeel-io/evenkeel/controllers/internal/proc"
)

// TestProcessCrashSQLite: P1, P6. Nothing that was answered is lost, and nothing stays undone, whatever is killed whenever.
//
// Each way to die comes once, EVENKEEL_KILLS asks for more kills. What dies when is random; EVENKEEL_SEED repeats the choices
// of a run, though not the moments.
func TestProcessCrashSQLite(t *testing.T) {
	t.Parallel() // it waits most of the time
	newStorm(t, "sqlite:"+filepath.Join(t.TempDir(), "evenkeel.db"), nil).run()
}

// TestProcessCrashPostgres is the same with a database that is killed, too.
func TestProcessCrashPostgres(t *testing.T) {
	t.Parallel()
	db := pgtest.Own(t)
	store, err := db.Create("crash")
	require.NoError(t, err)
	newStorm(t, store, db).run()
}

// number reads a number from the environment.
func number(t *testing.T, name string, standard uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return standard
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, name)
	return n
}

// storm is one run.
type storm struct {
	t     *testing.T
	seed  uint64
	rng   *rand.Rand
	store string
	db    *pgtest.Server // nil for SQLite
	env   []string       // of all processes
	nats  string         // host:port

	kills, wanted   int
	api, broker     *proc.Process
	traffic         traffic
	writers         []*writer
	witness         *witness
	began, reported time.Time
}

func newStorm(t *testing.T, store string, db *pgtest.Server) *storm {
	seed := number(t, "EVENKEEL_SEED", rand.Uint64())
	s := &storm{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), store: store, db: db, witness: newWitness(), began: time.Now()}
	s.reported = s.began
	s.wanted = int(number(t, "EVENKEEL_KILLS", 0))
	api := freeAddress(t)
	s.nats = freeAddress(t)
	s.env = []string{storeEnv + "=" + store, apiEnv + "=" + api, natsEnv + "=" + s.nats, folderEnv + "=" + t.TempDir()}
	s.traffic.clients = map[string]*client{}
	for _, kind := range []string{plain, kept} {
		c, err := apiclient.New[want, want](apiclient.Config{URL: "http://" + api}, kind)
		require.NoError(t, err)
		s.traffic.clients[kind] = c
	}
	for i := range writers {
		s.writers = append(s.writers, newWriter(&s.traffic, fmt.Sprintf("w%d", i), seed+uint64(i)))
	}
	return s
}

// freeAddress finds a loopback address that is free now.
func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func (s *storm) run() {
	ctx := s.t.Context()
	require.NoError(s.t, s.startBroker(ctx))
	s.t.Cleanup(func() { _ = s.broker.Kill() }) // what is wrong has been said
	require.NoError(s.t, s.startAPI(ctx))
	s.t.Cleanup(func() {
		_ = s.api.Kill()
		if s.t.Failed() {
			s.t.Logf("seed %d; the last API said:\n%s\nthe controller did, to no object:\n%s\nthe broker has:\n%s", s.seed, s.api.Said(), s.witness.tell("/"), dump("nats://"+s.nats))
		}
	})
	controller, err := start(ctx, "controller", s.env, s.witness.hear)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = controller.Kill() })
	_, err = s.traffic.clients[plain].Create(ctx, shared, want{}, apiclient.WithLabels(label(0)))
	require.NoError(s.t, err)

	require.NoError(s.t, s.rageAmongWriters(ctx))
	stormed := time.Since(s.began)
	s.check(ctx)
	s.t.Logf("seed %d: %d kills in %s, %d writes answered, %d refused, settled after %s", s.seed, s.kills, stormed.Round(time.Millisecond),
		s.traffic.answered.Load(), s.traffic.refused.Load(), (time.Since(s.began) - stormed).Round(time.Millisecond))
	for _, p := range []*proc.Process{controller, s.api, s.broker} {
		require.NoError(s.t, p.Stop())
	}
}

// rageAmongWriters kills while writers write. What a writer finds wrong ends it.
func (s *storm) rageAmongWriters(ctx context.Context) error {
	writing, ctx := errgroup.WithContext(ctx)
	stop := make(chan struct{})
	for _, w := range s.writers {
		writing.Go(func() error { return w.run(ctx, stop) })
	}
	writing.Go(func() error {
		defer close(stop) // then each writer ends with a write that was answered
		return s.rage(ctx)
	})
	return writing.Wait()
}

// strike is one thing that happens to the processes; all of them are up afterwards.
type strike struct {
	name string
	hit  func(ctx context.Context) error
}

func (s *storm) strikes() []strike {
	all := []strike{
		{"API", s.killAPI},
		{"broker", s.killBroker},
		{"broker, then API", s.killBrokerThenAPI},
		{"API as soon as it is up", s.killAPITwice},
	}
	for _, at := range []point{beforeCommit, beforeAnswer, beforePublish, beforeMark, afterMark} {
		all = append(all, strike{"API " + string(at), func(ctx context.Context) error { return s.killAPIAt(ctx, at) }})
	}
	if s.db != nil {
		all = append(all, strike{"database", s.killDatabase}, strike{"database, then API", s.killDatabaseThenAPI})
	}
	return all
}

// rage strikes at random until there were almost enough kills, and then once in each way.
func (s *storm) rage(ctx context.Context) error {
	all := s.strikes()
	for s.kills < s.wanted-len(all) {
		if err := s.strike(ctx, all[s.rng.IntN(len(all))]); err != nil {
			return err
		}
	}
	for _, i := range s.rng.Perm(len(all)) {
		if err := s.strike(ctx, all[i]); err != nil {
			return err
		}
	}
	return s.answers(ctx, 1)
}

func (s *storm) strike(ctx context.Context, what strike) error {
	if err := s.answers(ctx, s.rng.Int64N(40)); err != nil {
		return err
	}
	if time.Since(s.reported) > 10*time.Second && s.wanted > 0 {
		s.reported = time.Now()
		fmt.Fprintf(os.Stderr, "%s: %d of %d kills after %s, %d writes answered\n", s.t.Name(), s.kills, s.wanted,
			time.Since(s.began).Round(time.Second), s.traffic.answered.Load())
	}
	if err := what.hit(ctx); err != nil {
		return fmt.Errorf("after %d kills, %s: %w", s.kills, what.name, err)
	}
	return nil
}

// answers waits until so many more writes were answered: that is how time passes between the kills.
func (s *storm) answers(ctx context.Context, n int64) error {
	return s.passes(ctx, "writes answered", s.traffic.answered.Load, n)
}

// refusals waits until so many more calls were refused, while something is down.
func (s *storm) refusals(ctx context.Context, n int64) error {
	return s.passes(ctx, "calls refused", s.traffic.refused.Load, n)
}

func (s *storm) passes(ctx context.Context, what string, count func() int64, n int64) error {
	from, until := count(), time.Now().Add(patience)
	for count() < from+n {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Now().After(until) {
			return fmt.Errorf("%d of %d %s within %s; the API said:\n%s", count()-from, n, what, patience, s.api.Said())
		}
		pause(ctx, time.Millisecond)
	}
	return nil
}

func (s *storm) startAPI(ctx context.Context) error {
	p, err := start(ctx, "api", s.env, func([]byte) {})
	if err == nil {
		s.api = p
	}
	return err
}

func (s *storm) startBroker(ctx context.Context) error {
	p, err := start(ctx, "broker", s.env, func([]byte) {})
	if err == nil {
		s.broker = p
	}
	return err
}

func (s *storm) killAPI(ctx context.Context) error {
	s.kills++
	return inTurn(
		s.api.Kill,
		func() error { return s.refusals(ctx, s.rng.Int64N(10)) },
		func() error { return s.startAPI(ctx) },
	)
}

func (s *storm) killAPIAt(ctx context.Context, at point) error {
	s.kills++
	return inTurn(
		func() error { return dies(ctx, s.api, at, 1+s.rng.IntN(6)) },
		func() error { return s.startAPI(ctx) },
	)
}

func (s *storm) killAPITwice(ctx context.Context) error {
	return inTurn(
		func() error { return s.killAPI(ctx) },
		func() error { return s.killAPI(ctx) },
	)
}

// killBroker lets writers write without it for a while.
func (s *storm) killBroker(ctx context.Context) error {
	s.kills++
	return inTurn(
		s.broker.Kill,
		func() error { return s.answers(ctx, s.rng.Int64N(30)) },
		func() error { return s.startBroker(ctx) },
	)
}

// killBrokerThenAPI kills the API while it has many writes to tell of, and nobody to tell.
func (s *storm) killBrokerThenAPI(ctx context.Context) error {
	s.kills += 2
	return inTurn(
		s.broker.Kill,
		func() error { return s.answers(ctx, s.rng.Int64N(30)) },
		s.api.Kill,
		func() error { return s.startBroker(ctx) },
		func() error { return s.startAPI(ctx) },
	)
}

func (s *storm) killDatabase(ctx context.Context) error {
	s.kills++
	s.db.Kill()
	return inTurn(
		func() error { return s.refusals(ctx, s.rng.Int64N(10)) },
		s.db.Restart,
	)
}

func (s *storm) killDatabaseThenAPI(ctx context.Context) error {
	s.kills += 2
	s.db.Kill()
	return inTurn(
		s.api.Kill,
		s.db.Restart,
		func() error { return s.startAPI(ctx) },
	)
}

// inTurn does one thing after the other, up to the first that fails.
func inTurn(things ...func() error) error {
	for _, do := range things {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}
