package reconciler

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
)

// Defaults of [Config] and [Controller].
const (
	// DefaultWorkers is how many objects of a kind one replica works on at once: reconciles mostly wait for networks.
	DefaultWorkers = 16
	// MaxWorkers bounds Controller.Workers, as a guard against a slip.
	MaxWorkers = 10_000
	// DefaultTimeout is the deadline of one call: a function that hangs must not keep its worker for ever.
	DefaultTimeout = 10 * time.Minute
	// DefaultGrace is how long running functions may go on after a stop: what Kubernetes gives a pod.
	DefaultGrace = 25 * time.Second
	// DefaultResync is how often one replica looks for objects that are owed a reconcile although nobody was notified.
	DefaultResync = 10 * time.Minute
)

// Config says how to reach NATS and the API, and how the runner behaves. Only NATS and API are required.
type Config struct {
	// NATS is the connection to nats-server 2.12 or later with JetStream, made with the options that the installation needs
	// (credentials, TLS, several servers). It must reconnect for ever: connect with nats.MaxReconnects(-1), with
	// nats.IgnoreAuthErrorAbort() so that credentials which are refused for a while do not close it for good, and with
	// nats.RetryOnFailedConnect(true) if the server may come up later than the controller. Close it only when Run has
	// returned: Run ends with an error when it is closed.
	NATS *nats.Conn
	// API is the base URL of the Evenkeel API, without the /v1 of its paths.
	API string
	// HTTP sends the requests to the API; its transport carries TLS, and a client certificate if there is one. Default: a plain
	// client.
	HTTP *http.Client
	// Token gives the bearer token of each request to the API; its role is controller, for the kinds that are reconciled.
	// Default: none is sent.
	Token apiclient.TokenSource
	// Prefix separates installations on one NATS server. It is that of the API, under which it notifies: Run ends with an error if
	// it is not. The objects of a kind in one API belong to one prefix, and all kinds of a prefix trust each other
	// ([Permissions]). Default: notify.DefaultPrefix.
	Prefix string
	// Name is how this replica is named in locks, events and logs. Default: host name and process id.
	Name string
	// Logger gets what happens, with kind, name, attempt and fence (logr.FromSlogHandler makes one of log/slog's). Default:
	// the handler of slog.Default(), which writes to stderr. For silence pass logr.FromSlogHandler(slog.DiscardHandler):
	// logr.Discard() is the zero Logger, and so means the default.
	Logger logr.Logger
	// Observer is told of every step of every reconcile. It is called from many goroutines and must be quick; if it
	// panics, that is logged and it is called again for the next event. Default: none.
	Observer func(Event)
	// Lease is how long a dead replica's objects stay locked, in whole seconds. Default: lock.DefaultTTL.
	Lease time.Duration
	// Grace is how long running functions may go on after a stop. Default: DefaultGrace.
	Grace time.Duration
	// Resync is the interval of the search for missed objects, jittered by a tenth. Default: DefaultResync.
	Resync time.Duration
	// Replicas is how many NATS servers hold the streams and locks. Default: as they are; 1 for new ones.
	Replicas int
	// Storage is where new streams live. Default: files. Memory is for tests.
	Storage jetstream.StorageType
}

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = notify.DefaultPrefix
	}
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		c.Name = host + "-" + strconv.Itoa(os.Getpid())
	}
	if c.Logger.GetSink() == nil {
		c.Logger = logr.FromSlogHandler(slog.Default().Handler())
	}
	c.Lease = orDefault(c.Lease, lock.DefaultTTL)
	c.Grace = orDefault(c.Grace, DefaultGrace)
	c.Resync = orDefault(c.Resync, DefaultResync)
	return c
}

func orDefault(d, standard time.Duration) time.Duration {
	if d == 0 {
		return standard
	}
	return d
}

func (c Config) validate() error {
	switch {
	case c.NATS == nil:
		return errors.New("reconciler: Config.NATS is nil: pass a connection from nats.Connect")
	case c.NATS.Opts.MaxReconnect >= 0:
		return fmt.Errorf("reconciler: Config.NATS gives up after %d attempts to reconnect, and the controller with it: connect with nats.MaxReconnects(-1)", c.NATS.Opts.MaxReconnect)
	case c.API == "":
		return errors.New("reconciler: Config.API is empty: want the URL of the Evenkeel API, such as http://127.0.0.1:8080")
	case c.Grace < 0:
		return fmt.Errorf("reconciler: Config.Grace %s is negative", c.Grace)
	case c.Resync < time.Second:
		return fmt.Errorf("reconciler: Config.Resync %s: want a second or more", c.Resync)
	case c.Replicas < 0 || c.Replicas > 5:
		return fmt.Errorf("reconciler: Config.Replicas %d: want 0 to 5", c.Replicas)
	case c.Storage != jetstream.FileStorage && c.Storage != jetstream.MemoryStorage:
		return fmt.Errorf("reconciler: Config.Storage %d: want jetstream.FileStorage or MemoryStorage", c.Storage)
	}
	if err := subject.CheckPrefix(c.Prefix); err != nil {
		return fmt.Errorf("reconciler: Config.Prefix: %w", err)
	}
	return nil
}

func (c Config) notify() notify.Config {
	return notify.Config{Prefix: c.Prefix, Replicas: c.Replicas, Storage: c.Storage}
}
