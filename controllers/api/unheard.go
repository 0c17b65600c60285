package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

const (
	// lookEvery is how often kinds are looked at whose controller has not been seen, and lookWithin bounds one look.
	lookEvery, lookWithin = 10 * time.Second, 5 * time.Second
	// warnFirst is how soon a kind without a controller is logged again; the pause doubles up to warnLast.
	warnFirst, warnLast = time.Minute, time.Hour
	// maxUnheard bounds the kinds that are remembered: editors may write objects of any kind.
	maxUnheard = 1000
)

var errNoController = errors.New("changes are published and no controller of the kind has ever run under this prefix: is the kind spelled right, here and there?")

// unheard finds the kinds whose changes are published and that no controller has ever listened for. It is safe for concurrent use.
type unheard struct {
	has    func(ctx context.Context, kind string) (bool, error)
	count  func(ctx context.Context, kind string) (int64, error)
	prefix string
	log    logr.Logger

	mu    sync.Mutex
	kinds map[string]*silence
}

// silence is what is known of one kind.
type silence struct {
	heard bool      // a controller has run: nothing more is asked
	next  time.Time // when the log says so again
	pause time.Duration
}

// published notes that a change of a kind was published. It never waits for the broker.
func (u *unheard) published(kind string) {
	if u.has == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.kinds[kind] == nil && len(u.kinds) < maxUnheard {
		u.kinds[kind] = &silence{pause: warnFirst}
	}
}

// run looks until ctx is done.
func (u *unheard) run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			u.look(ctx, now)
		}
	}
}

// look asks for each kind that is due whether a controller has run, and logs those of which none has.
func (u *unheard) look(ctx context.Context, now time.Time) {
	for _, kind := range u.due(now) {
		ctx, cancel := context.WithTimeout(ctx, lookWithin)
		heard, err := u.has(ctx, kind)
		var waiting int64
		if err == nil && !heard {
			waiting, err = u.count(ctx, kind)
		}
		cancel()
		switch {
		case err != nil: // the relay says what is wrong with the broker, and requests what is wrong with the store
			u.log.V(1).Info("whether a kind has a controller is not known", "kind", kind, "error", err.Error())
		case !heard:
			u.log.Error(errNoController, "nobody listens", "kind", kind, "prefix", u.prefix, "waiting", waiting)
		}
		u.note(kind, now, heard)
	}
}

func (u *unheard) due(now time.Time) (kinds []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for kind, s := range u.kinds {
		if !s.heard && !now.Before(s.next) {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

func (u *unheard) note(kind string, now time.Time, heard bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.kinds[kind]
	s.heard, s.next, s.pause = heard, now.Add(s.pause), min(2*s.pause, warnLast)
}

// countOwed is how many objects of a kind are owed a reconcile.
func (s *store) countOwed(ctx context.Context, kind string) (n int64, err error) {
	err = s.read.QueryRowContext(ctx, `SELECT count(*) FROM objects WHERE kind = $1 AND owed_since IS NOT NULL`, kind).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count what is owed a reconcile of %s: %w", kind, err)
	}
	return n, nil
}
