package reconciler_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/requeue"
)

type widget = apiclient.Object[struct{}, struct{}]

func nothing(context.Context, *widget) (reconciler.Result, error) { return reconciler.Result{}, nil }

// connection is one that was never made: New does not use it.
func connection(maxReconnects int) *nats.Conn {
	return &nats.Conn{Opts: nats.Options{MaxReconnect: maxReconnects}}
}

func config(change func(*reconciler.Config)) reconciler.Config {
	cfg := reconciler.Config{NATS: connection(-1), API: "http://api.test"}
	change(&cfg)
	return cfg
}

func controller(change func(*reconciler.Controller)) reconciler.Controller {
	c := reconciler.For("widgets", nothing)
	change(&c)
	return c
}

func TestNewNamesTheFieldOfConfigThatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*reconciler.Config)
		want   string
	}{
		"no connection":              {func(c *reconciler.Config) { c.NATS = nil }, "Config.NATS is nil"},
		"a connection that gives up": {func(c *reconciler.Config) { c.NATS = connection(60) }, "Config.NATS gives up after 60 attempts"},
		"one that never reconnects":  {func(c *reconciler.Config) { c.NATS = connection(0) }, "Config.NATS gives up after 0 attempts"},
		"no API":                     {func(c *reconciler.Config) { c.API = "" }, "Config.API is empty"},
		"an API that is no URL":      {func(c *reconciler.Config) { c.API = "127.0.0.1:8080" }, `Config.API: apiclient: Config.URL "127.0.0.1:8080"`},
		"an API with its version":    {func(c *reconciler.Config) { c.API = "http://api.test/v1/" }, `Config.API: apiclient: Config.URL "http://api.test/v1/": want the base URL, without /v1`},
		"a prefix of two tokens":     {func(c *reconciler.Config) { c.Prefix = "a.b" }, `Config.Prefix: prefix "a.b"`},
		"a wildcard for a prefix":    {func(c *reconciler.Config) { c.Prefix = ">" }, `Config.Prefix: prefix ">"`},
		"a lease below the second":   {func(c *reconciler.Config) { c.Lease = time.Second }, "Config.Lease: lock: Config.TTL 1s"},
		"a lease of odd length":      {func(c *reconciler.Config) { c.Lease = 2500 * time.Millisecond }, "Config.Lease: lock: Config.TTL 2.5s"},
		"a negative lease":           {func(c *reconciler.Config) { c.Lease = -10 * time.Second }, "Config.Lease: lock: Config.TTL -10s"},
		"a negative grace":           {func(c *reconciler.Config) { c.Grace = -time.Second }, "Config.Grace -1s is negative"},
		"a resync without pause":     {func(c *reconciler.Config) { c.Resync = time.Millisecond }, "Config.Resync 1ms"},
		"a negative resync":          {func(c *reconciler.Config) { c.Resync = -time.Minute }, "Config.Resync -1m0s"},
		"negative replicas":          {func(c *reconciler.Config) { c.Replicas = -1 }, "Config.Replicas -1"},
		"too many replicas":          {func(c *reconciler.Config) { c.Replicas = 6 }, "Config.Replicas 6"},
		"a storage of its own":       {func(c *reconciler.Config) { c.Storage = jetstream.MemoryStorage + 1 }, "Config.Storage"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := reconciler.New(config(c.change), reconciler.For("widgets", nothing))
			require.ErrorContains(t, err, "reconciler: "+c.want)
		})
	}
}

func TestNewNamesTheControllerAndItsFieldThatIsWrong(t *testing.T) {
	const of = "controller of widgets: "
	for name, c := range map[string]struct {
		controllers []reconciler.Controller
		want        string
	}{
		"none":                      {nil, "no controllers"},
		"two of a kind":             {[]reconciler.Controller{reconciler.For("widgets", nothing), reconciler.For("widgets", nothing)}, "two controllers of widgets"},
		"one that For did not make": {[]reconciler.Controller{{}}, `controller: kind ""`},
		"a bad kind":                {[]reconciler.Controller{reconciler.For("Widgets", nothing)}, `controller: kind "Widgets"`},
		"the second is bad":         {[]reconciler.Controller{reconciler.For("gadgets", nothing), reconciler.For("a.b", nothing)}, `controller: kind "a.b"`},
		"no function":               {[]reconciler.Controller{reconciler.For[struct{}, struct{}]("widgets", nil)}, of + "the function is nil"},
		"no function to create":     {[]reconciler.Controller{reconciler.ForWithCleanup("widgets", nil, nothing)}, of + "the function is nil"},
		"no function to delete":     {[]reconciler.Controller{reconciler.ForWithCleanup("widgets", nothing, nil)}, of + "the cleanup is nil"},
		"negative workers":          {[]reconciler.Controller{controller(func(c *reconciler.Controller) { c.Workers = -1 })}, of + "Workers -1"},
		"too many workers":          {[]reconciler.Controller{controller(func(c *reconciler.Controller) { c.Workers = reconciler.MaxWorkers + 1 })}, of + "Workers 10001"},
		"a negative timeout":        {[]reconciler.Controller{controller(func(c *reconciler.Controller) { c.Timeout = -time.Second })}, of + "Timeout -1s"},
		"a negative base":           {[]reconciler.Controller{controller(func(c *reconciler.Controller) { c.Backoff = requeue.Backoff{Base: -1} })}, of + "Backoff {Base:-1ns Cap:0s} has a negative delay"},
		"a negative cap":            {[]reconciler.Controller{controller(func(c *reconciler.Controller) { c.Backoff = requeue.Backoff{Cap: -1} })}, of + "Backoff {Base:0s Cap:-1ns} has a negative delay"},
		"a base above the cap": {
			[]reconciler.Controller{controller(func(c *reconciler.Controller) {
				c.Backoff = requeue.Backoff{Base: time.Minute + 1, Cap: time.Minute}
			})}, of + "Backoff.Base 1m0.000000001s is above Backoff.Cap 1m0s",
		},
		"a base above the default cap": {
			[]reconciler.Controller{controller(func(c *reconciler.Controller) { c.Backoff = requeue.Backoff{Base: requeue.DefaultCap + 1} })},
			of + "Backoff.Base 5m0.000000001s is above Backoff.Cap 5m0s",
		},
		"a cap below the default base": {
			[]reconciler.Controller{controller(func(c *reconciler.Controller) { c.Backoff = requeue.Backoff{Cap: requeue.DefaultBase - 1} })},
			of + "Backoff.Base 1s is above Backoff.Cap 999.999999ms",
		},
		"a version that is no name": {[]reconciler.Controller{controller(func(c *reconciler.Controller) { c.Version = "V2" })}, of + `Version "V2"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := reconciler.New(config(func(*reconciler.Config) {}), c.controllers...)
			require.ErrorContains(t, err, "reconciler: "+c.want)
			if len(c.controllers) == 1 {
				_, _, _, err = c.controllers[0].Once(t.Context(), &apiclient.Raw{})
				require.ErrorContains(t, err, "reconciler: "+c.want, "also without a runner")
			}
		})
	}
}

func TestNewTakesEveryFieldAtItsLimits(t *testing.T) {
	for name, change := range map[string]func(*reconciler.Config){
		"defaults": func(*reconciler.Config) {},
		"lowest": func(c *reconciler.Config) {
			c.Lease, c.Grace, c.Resync, c.Replicas, c.Storage = 2*time.Second, 1, time.Second, 1, jetstream.FileStorage
		},
		"highest": func(c *reconciler.Config) {
			c.API, c.HTTP, c.Prefix, c.Name, c.Logger = "https://user:secret@api.test/base/", http.DefaultClient, "ours", "a\x00\u00e9\xff", logr.Discard()
			c.Lease, c.Grace, c.Resync, c.Replicas, c.Storage = time.Hour, time.Hour, time.Hour, 5, jetstream.MemoryStorage
			c.Observer = func(reconciler.Event) {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			most := reconciler.ForWithCleanup("gadgets", nothing, nothing)
			most.Workers, most.Version = reconciler.MaxWorkers, "v2"
			most.Backoff = requeue.Backoff{Base: requeue.DefaultCap, Cap: requeue.DefaultCap}
			r, err := reconciler.New(config(change), controller(func(c *reconciler.Controller) { c.Workers = 1 }), most)
			require.NoError(t, err)
			require.EqualError(t, r.Ready(), "reconciler: not running")
		})
	}
}
