// Package api is the Evenkeel API: a thin, generic store of declared objects that tells controllers what changed.
//
//	a, err := api.Open(ctx, api.Config{Store: "sqlite:evenkeel.db", Notify: publisher.Publish})
//	go http.ListenAndServe(addr, a.Handler())
//	err = a.Run(ctx)
//	a.Close()
//
// The wire and its rules are those of package apiclient; the conformance suite in apiclient/apitest checks them.
//
// A write and its notification cannot diverge. The row itself says that it has not been notified; [API.Run], the relay,
// publishes and then marks it. A crash between the two costs a second notification, never a lost one. Any number of APIs
// may share a store and relay at once.
//
// Who asks needs a token (see [Tokens]) or a client certificate. Package access says what roles may do, and the door (door.go)
// holds every operation to it: an operation declares its verb, or is refused.
//
// One write's path is door.go (who asks), handlers.go (what was asked), plan.go (what that is in the current version of the kind),
// internal/objects (what it does to the object), objects.go (how that is stored).
package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/evenkeel-io/evenkeel/controllers/secrets"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// Config says where objects are kept and who is told of their changes.
type Config struct {
	// Store is "sqlite:PATH", a file that is made if it is not there; "sqlite::memory:"; or the URL of a PostgreSQL database,
	// "postgres://USER:PASSWORD@HOST/DATABASE?sslmode=verify-full". CockroachDB speaks the same protocol, and only SQL that it
	// has is used, but it is not tested. Required.
	//
	// SQLite commits to its write-ahead log without waiting for the disk: what was accepted survives the death of the
	// process, but a power failure may take back the last moments.
	Store string
	// Notify tells controllers that kind/name has to be looked at. reason is "created", "changed", "deleted", "retry",
	// "paused" or "resumed", that of the latest change. It returns nil once the broker has taken the notification; after an
	// error it is called again. It is called concurrently. Required.
	Notify func(ctx context.Context, kind, name, reason string) error
	// HasController reports whether a controller of a kind has ever listened for its notifications. It is asked in the background,
	// for kinds whose changes have been published, until it says so; meanwhile the log says that there is none. Default: nobody
	// is asked.
	HasController func(ctx context.Context, kind string) (bool, error)
	// Prefix is the one under which Notify publishes (notify.Config.Prefix). Controllers ask for it, to find out that theirs is
	// another. Default: they are not told.
	Prefix string
	// Kinds are stored with their schemas, which replace those that are there. Others may be added at run time.
	Kinds []Kind
	// OnlyKinds refuses to write objects of kinds that have no schema. Without it their specs may be any JSON object.
	OnlyKinds bool
	// Secrets are the keys that fields which a schema marks x-sensitive are encrypted with. Without them no such schema is taken.
	Secrets *secrets.Keyring
	// Access says who may ask. Default: whoever has a token.
	Access Access
	// Logger hears of what goes wrong. Default: nothing is logged.
	Logger logr.Logger
}

const (
	// keepChanges is for how long a watch that was interrupted goes on where it was. Later it is shown everything again.
	keepChanges = 15 * time.Minute
	// keepRequests is for how long a create may be sent again under its key.
	keepRequests = 24 * time.Hour
	tidyEvery    = time.Minute
)

// tolerableLag is for how long the relay may fail before the API is not ready: longer than a restart of the broker.
const tolerableLag = 30 * time.Second

// API serves one store. It is safe for concurrent use.
type API struct {
	store   *store
	tokens  *Tokens
	kinds   *kinds
	relay   *relay
	feed    *feed
	door    *door
	metrics *metrics
	log     logr.Logger
	prefix  string
	unheard *unheard
	handler http.Handler
}

// Open opens the store, brings its schema up to date and returns its API. Close it after use.
func Open(ctx context.Context, cfg Config) (*API, error) {
	if cfg.Notify == nil {
		return nil, errors.New("api: Config.Notify: want a function")
	}
	if err := cfg.Access.check(); err != nil {
		return nil, err
	}
	s, err := openStore(ctx, cfg.Store, cfg.Secrets)
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	s.kinds.only = cfg.OnlyKinds
	err = s.kinds.register(ctx, cfg.Kinds)
	if err == nil {
		err = s.checkKeys(ctx, cfg.Logger)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("api: %w", err), s.close())
	}
	a := &API{
		store: s, tokens: &Tokens{store: s}, kinds: s.kinds, relay: newRelay(s, cfg.Notify, cfg.Logger), feed: newFeed(s, cfg.Logger), log: cfg.Logger, prefix: cfg.Prefix,
	}
	a.unheard = &unheard{has: cfg.HasController, count: s.countOwed, prefix: cfg.Prefix, log: cfg.Logger, kinds: map[string]*silence{}}
	a.relay.published = a.unheard.published
	a.metrics = newMetrics(a.relay, a.feed)
	a.door = newDoor(a, cfg.Access)
	a.handler = a.routes()
	return a, nil
}

// Handler serves the wire.
func (a *API) Handler() http.Handler { return a.handler }

// Run relays changes to Notify, feeds watches, and drops what is only kept for a while, until ctx is done; then it returns
// nil. What is being published is waited for.
func (a *API) Run(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return a.relay.run(ctx) })
	running.Go(func() error { return a.feed.run(ctx) })
	running.Go(func() error { return a.tidy(ctx) })
	running.Go(func() error { return a.unheard.run(ctx) })
	return running.Wait()
}

// EndWatches ends the watches that are being served, and serves no more. Their clients resume them elsewhere. Without
// it a server that shuts down would wait for them.
func (a *API) EndWatches() { a.feed.end() }

// tidy drops old rows, now and then.
func (a *API) tidy(ctx context.Context) error {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		a.drop(ctx, "old changes", func() (bool, error) { return a.store.trim(ctx, objects.Now().Add(-keepChanges)) })
		a.drop(ctx, "old events", func() (bool, error) { return a.store.forgetEvents(ctx, objects.Now().Add(-objects.KeepEvents)) })
		if err := a.store.forgetRequests(ctx, objects.Now().Add(-keepRequests)); err != nil && ctx.Err() == nil {
			a.log.Error(err, "old requests could not be dropped, trying again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// drop calls page until there is no more to drop.
func (a *API) drop(ctx context.Context, what string, page func() (more bool, err error)) {
	for more := true; more && ctx.Err() == nil; {
		var err error
		if more, err = page(); err != nil && ctx.Err() == nil {
			a.log.Error(err, what+" could not be dropped, trying again")
		}
	}
}

// Ready returns nil if the store answers, notifications are being relayed and the audit log is written, and else what is
// wrong.
func (a *API) Ready(ctx context.Context) error {
	var err error
	if pingErr := a.store.read.PingContext(ctx); pingErr != nil {
		a.log.Error(pingErr, "the store does not answer")
		err = errors.New("the store does not answer")
	}
	if lag := a.relay.lag(); lag > tolerableLag {
		err = errors.Join(err, fmt.Errorf("notifications have not been relayed for %s", lag.Round(time.Second)))
	}
	if !a.door.audit.ready() {
		err = errors.Join(err, errors.New("the audit log cannot be written"))
	}
	return err
}

// Flush relays, now, everything that has not been notified when it is called. It returns an error if some of it could not
// be. It may be called while Run is running, and also without it.
func (a *API) Flush(ctx context.Context) error { return a.relay.flush(ctx) }

// Close closes the store. Call it when Run has returned and no request is being served.
func (a *API) Close() error { return a.store.close() }
