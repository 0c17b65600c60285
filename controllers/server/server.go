// Package server serves the Evenkeel API in one process: the store, its relay to NATS, and HTTP with probes.
//
//	s, err := server.Start(ctx, server.Config{Store: "sqlite:evenkeel.db", NATS: nc})
//	fmt.Println(s.URL())
//	err = s.Wait(ctx) // until ctx ends or something fails
//
// Who asks needs a token of the store or, with Config.ClientCerts, a client certificate; package access says what they may.
// Config.InsecureLoopback does without, on this machine alone.
//
// Probes: /livez says that the process answers; /readyz that it can do its work, and if not, why. They and /openapi.json are
// open to all.
package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/controllers/api"
	"github.com/evenkeel-io/evenkeel/controllers/secrets"
	"github.com/evenkeel-io/evenkeel/notify"
)

const (
	// DefaultListen is where the API is served unless told otherwise. It is reached from this machine alone.
	DefaultListen = "127.0.0.1:8080"
	// readHeader and idle bound slow and silent clients.
	readHeader, idle = 5 * time.Second, 2 * time.Minute
	// stopWithin is for how long requests may go on after a stop.
	stopWithin = 10 * time.Second
	// askWithin bounds what a probe asks of the store.
	askWithin = 2 * time.Second
)

// Config says what to serve.
type Config struct {
	// Store is that of api.Config. Required.
	Store string
	// Listen is the address to serve on; port 0 chooses one. Default: DefaultListen. One that others can reach needs TLS or
	// BehindTLSProxy.
	Listen string
	// TLS serves HTTPS, if it is not nil.
	TLS *tls.Config
	// BehindTLSProxy says that a proxy in front of the server ends TLS, and that nobody else reaches the server: it is then
	// served without TLS on any address. To the limits of wrong credentials all requests come from the proxy.
	BehindTLSProxy bool
	// InsecureLoopback lets everybody on this machine do everything, without a credential. Only loopback addresses are taken
	// then, and pages of other sites in a browser are kept out. Default: a token or a client certificate is asked for.
	InsecureLoopback bool
	// ClientCerts says what client certificates allow, by their common name. TLS must verify them, with ClientCAs.
	ClientCerts map[string]access.Grant
	// Audit gets a line of JSON for each write and each refused request. Default: no audit log is kept.
	Audit io.Writer
	// Rate and Burst limit the requests of each principal, as in api.Access. Default: no limit.
	Rate  float64
	Burst int
	// Kinds are the kinds that come with the program, as in api.Config.
	Kinds []api.Kind
	// Secrets are the keys of secret fields, as in api.Config.
	Secrets *secrets.Keyring
	// NATS is where controllers are notified; connect with nats.MaxReconnects(-1) and nats.IgnoreAuthErrorAbort(). Required.
	NATS *nats.Conn
	// Streams says which streams on it; they are made if they are not there.
	Streams notify.Config
	// Logger hears of what goes wrong. Default: nothing is logged.
	Logger logr.Logger
}

// Server is an API that is served.
type Server struct {
	cfg      Config
	api      *api.API
	web      *http.Server
	listener net.Listener
	stop     context.CancelFunc
	running  errgroup.Group
	ended    chan struct{}
	err      error // once ended is closed
}

// Start opens the store, makes the streams and serves. Wait for the server afterwards, or Stop it.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.NATS == nil {
		return nil, errors.New("server: Config.NATS is nil")
	}
	if cfg.Listen == "" {
		cfg.Listen = DefaultListen
	}
	if cfg.Logger.GetSink() == nil {
		cfg.Logger = logr.Discard()
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if err := notify.Streams(ctx, cfg.NATS, cfg.Streams); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	publisher, err := notify.NewPublisher(cfg.NATS, cfg.Streams)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	prefix := cmp.Or(cfg.Streams.Prefix, notify.DefaultPrefix)
	hasController := func(ctx context.Context, kind string) (bool, error) { // its first controller makes the consumer, which stays
		return notify.HasConsumer(ctx, cfg.NATS, cfg.Streams, kind)
	}
	a, err := api.Open(ctx, api.Config{Store: cfg.Store, Notify: publisher.Publish, Prefix: prefix, HasController: hasController, Logger: cfg.Logger, Secrets: cfg.Secrets, Kinds: cfg.Kinds, Access: api.Access{
		Insecure: cfg.InsecureLoopback, ClientCerts: cfg.ClientCerts, Audit: cfg.Audit, Rate: cfg.Rate, Burst: cfg.Burst,
	}})
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("server: Config.Listen: %w", err), a.Close())
	}
	if cfg.InsecureLoopback && !onLoopback(l) {
		return nil, errors.Join(fmt.Errorf("server: Config.Listen %q is not on this machine alone", cfg.Listen), l.Close(), a.Close())
	}
	s := &Server{cfg: cfg, api: a, listener: l, ended: make(chan struct{})}
	s.serve(ctx)
	return s, nil
}

func (s *Server) serve(ctx context.Context) {
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.web = &http.Server{Handler: s.routes(), TLSConfig: s.cfg.TLS, ReadHeaderTimeout: readHeader, IdleTimeout: idle}
	s.web.RegisterOnShutdown(s.api.EndWatches)
	s.running.Go(func() error {
		defer s.stop() // one that fails ends the other
		if s.cfg.TLS != nil {
			return s.web.ServeTLS(s.listener, "", "")
		}
		return s.web.Serve(s.listener)
	})
	s.running.Go(func() error {
		<-ctx.Done()
		until, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
		defer cancel()
		return s.web.Shutdown(until)
	})
	relaying, end := context.WithCancel(context.WithoutCancel(ctx))
	relayed := make(chan error, 1)
	go func() { relayed <- s.api.Run(relaying) }() // it outlives the requests, and is waited for below
	go func() {
		defer close(s.ended)
		err := s.running.Wait()
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		end()
		s.err = errors.Join(err, <-relayed, s.api.Close())
	}()
}

// routes are the API and the probes.
func (s *Server) routes() http.Handler {
	mux, handler := http.NewServeMux(), s.api.Handler()
	if s.cfg.InsecureLoopback {
		handler = local(handler)
	}
	mux.Handle("/", handler)
	mux.HandleFunc("GET /livez", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithTimeout(req.Context(), askWithin)
		defer cancel()
		if err := s.Ready(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return mux
}

// Ready returns nil if the server can do its work, and else why it cannot.
func (s *Server) Ready(ctx context.Context) error {
	err := s.api.Ready(ctx)
	if !s.cfg.NATS.IsConnected() {
		err = errors.Join(errors.New("not connected to NATS"), err)
	}
	return err
}

// URL is where the API is served.
func (s *Server) URL() string {
	scheme := "http"
	if s.cfg.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + s.listener.Addr().String()
}

// Wait serves until ctx ends, then stops, or until something fails.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-s.ended:
	}
	return s.Stop()
}

// Stop takes no new requests, lets those under way finish, and relays what they changed until the store is closed.
func (s *Server) Stop() error {
	s.stop()
	<-s.ended
	return s.err
}
