package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// TestKindWithoutAControllerIsLogged, rarely, and not any more when one has run.
func TestKindWithoutAControllerIsLogged(t *testing.T) {
	var logged []string
	log := funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
	var heard bool
	var failed error
	asked := 0
	a, err := Open(t.Context(), Config{
		Store: newStore(t), Notify: new(ear).notify, Prefix: "ours", Logger: log, Access: Access{Insecure: true},
		HasController: func(_ context.Context, kind string) (bool, error) {
			asked++
			require.Equal(t, "widgets", kind)
			return heard, failed
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	now := time.Now()
	look := func(times int) {
		for range times {
			a.unheard.look(t.Context(), now)
			now = now.Add(lookEvery)
		}
	}
	look(10)
	create(t, a, 3)
	require.NoError(t, a.Flush(t.Context()))
	require.Zero(t, asked, "nobody asks the broker in the path of a write")
	look(1)
	require.Len(t, logged, 1)
	for _, part := range []string{"no controller of the kind has ever run", `"kind"="widgets"`, `"prefix"="ours"`, `"waiting"=3`} {
		require.Contains(t, logged[0], part)
	}
	look(5)
	require.Len(t, logged, 1)
	look(int(24 * time.Hour / lookEvery))
	require.Greater(t, len(logged), 20)
	require.Less(t, len(logged), 35)
	before := len(logged)
	failed = errors.New("the broker is away")
	look(int(2 * time.Hour / lookEvery))
	failed, heard = nil, true
	look(int(2 * time.Hour / lookEvery))
	require.Len(t, logged, before, strings.Join(logged[before:], "\n"))
	asked = 0
	_, _, err = a.store.change(t.Context(), objects.Key{Kind: "widgets", Name: "w-0000"}, objects.RequestRetry)
	require.NoError(t, err)
	require.NoError(t, a.Flush(t.Context()))
	look(1000)
	require.Zero(t, asked, "that one has run stays true")
}

// listening is an unheard that runs in virtual time, with what it logs: errors, and what is said at verbosity 1.
type listening struct {
	*unheard
	mu           sync.Mutex
	asked        []string
	counted      []string
	errors, info []string
	at           []time.Duration // when there was an error
}

// listens runs do beside an unheard whose broker answers with has, which may be nil.
func listens(t *testing.T, has func(ctx context.Context, kind string) (bool, error), do func(t *testing.T, l *listening)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l := &listening{}
		l.unheard = &unheard{prefix: "ours", kinds: map[string]*silence{}}
		l.count = func(_ context.Context, kind string) (int64, error) {
			l.counted = append(l.counted, kind)
			if kind == "uncounted" {
				return 0, errors.New("the store is away")
			}
			return 7, nil
		}
		if has != nil {
			l.has = func(ctx context.Context, kind string) (bool, error) {
				l.mu.Lock()
				l.asked = append(l.asked, kind)
				l.mu.Unlock()
				return has(ctx, kind)
			}
		}
		note := func(_, args string) {
			l.mu.Lock()
			defer l.mu.Unlock()
			if strings.Contains(args, `"level"=1`) {
				l.info = append(l.info, args)
				return
			}
			l.errors, l.at = append(l.errors, args), append(l.at, time.Since(began))
		}
		l.log = funcr.New(note, funcr.Options{Verbosity: 1})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.run(ctx) }()
		do(t, l)
		cancel()
		require.NoError(t, <-ended)
	})
}

// TestUnheardKindIsLoggedLessAndLessOften, however many changes of it are published meanwhile.
func TestUnheardKindIsLoggedLessAndLessOften(t *testing.T) {
	listens(t, func(context.Context, string) (bool, error) { return false, nil }, func(t *testing.T, l *listening) {
		for range 500 {
			l.published("widgets")
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		want := []time.Duration{lookEvery}
		for pause := warnFirst; want[len(want)-1]+pause <= 500*time.Minute; pause = min(2*pause, warnLast) {
			want = append(want, want[len(want)-1]+pause)
		}
		require.Equal(t, want, l.at)
		require.Len(t, l.asked, len(want), "the broker is asked no more often")
	})
}

// TestEachUnheardKindIsLogged, in the order of their names, and of too many only some: editors may write objects of any kind.
func TestEachUnheardKindIsLogged(t *testing.T) {
	listens(t, func(context.Context, string) (bool, error) { return false, nil }, func(t *testing.T, l *listening) {
		var want []string
		for i := range maxUnheard {
			want = append(want, fmt.Sprintf("kind-%04d", i))
		}
		for i := range maxUnheard {
			l.published(want[(i*7)%maxUnheard])
		}
		l.published("one-more")
		time.Sleep(lookEvery)
		synctest.Wait()
		require.Equal(t, want, l.asked)
		require.Len(t, l.errors, maxUnheard)
	})
}

// TestNoKindIsUnheardWhereNobodyKnows: an API that cannot ask for controllers says nothing of them.
func TestNoKindIsUnheardWhereNobodyKnows(t *testing.T) {
	listens(t, nil, func(t *testing.T, l *listening) {
		l.published("widgets")
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Empty(t, l.errors)
		require.Empty(t, l.info)
	})
}

// TestBrokerThatHangsIsNotAskedForEver, hides no other kind, and is no reason to say that nobody listens.
func TestBrokerThatHangsIsNotAskedForEver(t *testing.T) {
	var asked []context.Context
	has := func(ctx context.Context, kind string) (bool, error) {
		asked = append(asked, ctx)
		if kind == "hangs" {
			<-ctx.Done()
			return false, ctx.Err()
		}
		return kind == "heard", nil
	}
	listens(t, has, func(t *testing.T, l *listening) {
		for _, kind := range []string{"hangs", "heard", "uncounted", "unheard"} {
			l.published(kind)
		}
		time.Sleep(lookEvery + lookWithin)
		synctest.Wait()
		require.Equal(t, []string{"hangs", "heard", "uncounted", "unheard"}, l.asked)
		require.Equal(t, []string{"uncounted", "unheard"}, l.counted)
		require.Len(t, l.errors, 1)
		require.Contains(t, l.errors[0], `"kind"="unheard"`)
		require.Equal(t, []time.Duration{lookEvery + lookWithin}, l.at)
		require.Len(t, l.info, 2)
		require.Contains(t, l.info[0], `"kind"="hangs" "error"="context deadline exceeded"`)
		require.Contains(t, l.info[1], `"kind"="uncounted" "error"="the store is away"`)
		require.ErrorIs(t, asked[3].Err(), context.Canceled, "nothing of a look is left")
	})
}

// TestKindsOwedCannotBeCounted where the store fails: it is no 0.
func TestKindsOwedCannotBeCounted(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	create(t, a, 2)
	n, err := a.store.countOwed(t.Context(), "widgets")
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
	require.NoError(t, a.store.read.Close())
	_, err = a.store.countOwed(t.Context(), "widgets")
	require.ErrorContains(t, err, "count what is owed a reconcile of widgets")
}
