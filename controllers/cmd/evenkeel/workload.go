package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/api"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// workloadCommand runs a replica of the workload controller.
type workloadCommand struct {
	natsFlags `embed:""`

	API             string `help:"URL of the Evenkeel API." env:"EVENKEEL_API" default:"http://127.0.0.1:8080" json:"api" name:"api"`
	TokenFile       string `help:"File with a token of the role controller for the four kinds." env:"EVENKEEL_TOKEN_FILE" type:"existingfile" json:"token-file,omitempty"`
	EditorTokenFile string `help:"File with a token of the role editor for definitions and instances. Without it, and with --token-file, the kind workloads is left alone." env:"EVENKEEL_EDITOR_TOKEN_FILE" type:"existingfile" json:"editor-token-file,omitempty"`
	Kubeconfigs     string `help:"Folder of the kubeconfigs that runtimes may name." env:"EVENKEEL_KUBECONFIGS" type:"existingdir" json:"kubeconfigs,omitempty"`
	Probe           string `help:"Address of the readiness probe." env:"EVENKEEL_PROBE" default:"127.0.0.1:8081" json:"probe"`
}

func (c *workloadCommand) settings() any {
	shown := *c
	shown.natsFlags = c.natsFlags.shown()
	return shown
}

func (c *workloadCommand) run(ctx context.Context, env environment) error {
	nc, err := c.connect("evenkeel workload")
	if err != nil {
		return err
	}
	defer nc.Close()
	w := replica{cfg: workload.Config{API: apiclient.Config{URL: c.API}, Kubeconfigs: c.Kubeconfigs}, prefix: c.Prefix, nc: nc}
	if c.TokenFile != "" {
		w.cfg.API.Token = apiclient.TokenFile(c.TokenFile)
	}
	if c.EditorTokenFile != "" || c.TokenFile == "" {
		editor := w.cfg.API
		if c.EditorTokenFile != "" {
			editor.Token = apiclient.TokenFile(c.EditorTokenFile)
		}
		w.cfg.Editor = &editor
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Probe)
	if err != nil {
		return fmt.Errorf("--probe: %w", err)
	}
	fmt.Fprintf(env.out, "the workload controller is up; ready: http://%s/readyz\n", listener.Addr())
	return w.run(ctx, env, listener)
}

// replica is a workload controller and its runner.
type replica struct {
	cfg    workload.Config
	prefix string
	nc     *nats.Conn
}

// run reconciles until ctx is done. The listener, which may be nil, is for the probe.
func (w *replica) run(ctx context.Context, env environment, listener net.Listener) error {
	controller, err := workload.New(w.cfg)
	if err != nil {
		return err
	}
	runner, err := reconciler.New(reconciler.Config{
		NATS: w.nc, API: w.cfg.API.URL, Token: w.cfg.API.Token, Prefix: w.prefix, Logger: env.log,
	}, controller.Controllers()...)
	if err != nil {
		return err
	}
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error {
		controller.Run(ctx, runner.Notify)
		return nil
	})
	running.Go(func() error { return runner.Run(ctx) })
	if listener != nil {
		probe := &http.Server{Handler: ready(runner), ReadHeaderTimeout: time.Second}
		running.Go(func() error {
			if err := probe.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve the probe: %w", err)
			}
			return nil
		})
		context.AfterFunc(ctx, func() { _ = probe.Close() })
	}
	return running.Wait()
}

func ready(runner *reconciler.Runner) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := runner.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return mux
}

// kinds are those that come with the reference controllers.
func kinds(workloads bool) []api.Kind {
	if !workloads {
		return nil
	}
	return workload.Kinds()
}
