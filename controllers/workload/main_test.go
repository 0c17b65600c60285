package workload_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/secrets"
	"github.com/evenkeel-io/evenkeel/controllers/server"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// TestMain lets more tests run at once than there are processors: they wait for a cluster most of the time. Those that compare all
// that is in it run alone, before.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "5"); err != nil {
		panic(err)
	}
	code := m.Run()
	kubetest.Stop()
	os.Exit(code)
}

// patience is for how long anything may take that takes seconds at the most.
const patience = 5 * time.Minute

// installation is an API, a NATS server and some replicas of the controller.
type installation struct {
	testing.TB
	api         apiclient.Config
	nats        string // the URL of the NATS server
	runtimes    *apiclient.Client[workload.RuntimeSpec, workload.RuntimeStatus]
	definitions *apiclient.Client[workload.DefinitionSpec, workload.DefinitionStatus]
	instances   *apiclient.Client[workload.InstanceSpec, workload.InstanceStatus]
	workloads   *apiclient.Client[workload.WorkloadSpec, workload.WorkloadStatus]

	// requests sends those of replicas that start afterwards to the API, and observe is told of what they do. Nil: as without.
	requests *http.Client
	observe  func(reconciler.Event)
	start    func(name string) (stop func())
	// notify asks for a reconcile, by the replica that started last.
	notify func(ctx context.Context, kind, name, reason string) error
}

func install(t testing.TB, replicas int) *installation {
	t.Helper()
	dir := t.TempDir()
	node, err := broker.Start(filepath.Join(dir, "nats"), "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { broker.Stop(node) })
	nc, err := broker.Connect(node)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	keys, err := secrets.Parse("test:" + base64.StdEncoding.EncodeToString(key))
	require.NoError(t, err)
	srv, err := server.Start(t.Context(), server.Config{
		Listen: "127.0.0.1:0", InsecureLoopback: true, Store: "sqlite:" + filepath.Join(dir, "api.db"), NATS: nc, Secrets: keys, Kinds: workload.Kinds(),
	})
	require.NoError(t, err)
	serving, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- srv.Wait(serving) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
	})
	i := &installation{TB: t, api: apiclient.Config{URL: srv.URL()}, nats: node.ClientURL()}
	for _, err := range []error{
		client(i.api, workload.Runtimes, &i.runtimes), client(i.api, workload.Definitions, &i.definitions),
		client(i.api, workload.Instances, &i.instances), client(i.api, workload.Workloads, &i.workloads),
	} {
		require.NoError(t, err)
	}
	i.start = func(name string) func() {
		nc, err := broker.Connect(node)
		require.NoError(t, err)
		api := i.api
		api.HTTP = i.requests
		c, err := workload.New(workload.Config{API: api, Editor: &api})
		require.NoError(t, err)
		runner, err := reconciler.New(reconciler.Config{
			NATS: nc, API: srv.URL(), HTTP: i.requests, Name: name, Logger: logger(t, name), Observer: i.observe,
		}, c.Controllers()...)
		require.NoError(t, err)
		i.notify = runner.Notify
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx, runner.Notify) })
		running.Go(func() {
			if err := runner.Run(ctx); err != nil {
				t.Errorf("replica %s: %s", name, err)
			}
		})
		stop := sync.OnceFunc(func() {
			cancel()
			running.Wait()
			nc.Close()
		})
		t.Cleanup(stop)
		return stop
	}
	for n := range replicas {
		i.start(fmt.Sprintf("replica-%d", n))
	}
	return i
}

func client[S, T any](cfg apiclient.Config, kind string, into **apiclient.Client[S, T]) (err error) {
	*into, err = apiclient.New[S, T](cfg, kind)
	return err
}

// logger logs to the test with EVENKEEL_VERBOSE.
func logger(t testing.TB, name string) logr.Logger {
	if os.Getenv("EVENKEEL_VERBOSE") == "" {
		return logr.FromSlogHandler(slog.DiscardHandler)
	}
	return funcr.New(func(_, args string) { t.Log(name, args) }, funcr.Options{Verbosity: 1})
}

// cluster declares the cluster that all tests share, with all rights.
func (i *installation) cluster(name string) {
	i.Helper()
	data, err := os.ReadFile(kubetest.Start(i.TB).Kubeconfig())
	require.NoError(i, err)
	_, err = i.runtimes.Put(i.Context(), name, workload.RuntimeSpec{Kubeconfig: string(data)})
	require.NoError(i, err)
}

// ready waits until an instance is ready with what is wanted now.
func (i *installation) ready(name string) *workload.Instance {
	i.Helper()
	return i.until(name, (*workload.Instance).Ready)
}

// until waits until an instance is so.
func (i *installation) until(name string, is func(*workload.Instance) bool) *workload.Instance {
	i.Helper()
	ctx, cancel := context.WithTimeout(i.Context(), patience)
	defer cancel()
	in, err := i.instances.WaitFor(ctx, name, is)
	if err != nil {
		now, _ := i.instances.Get(i.Context(), name)
		i.Fatalf("%s: %s\nit is: %+v", name, err, now)
	}
	return in
}

// fails waits until an instance fails with an error that contains text. It may fail in another way before: a cluster that
// is slow to answer, say.
func (i *installation) fails(name, text string) *workload.Instance {
	i.Helper()
	return i.until(name, func(in *workload.Instance) bool {
		return in != nil && strings.Contains(in.Reconciliation.LastError, text)
	})
}

// retried has an instance reconciled once more, and waits until it was.
func (i *installation) retried(name string) *workload.Instance {
	i.Helper()
	_, err := i.instances.Retry(i.Context(), name)
	require.NoError(i, err)
	return i.until(name, func(in *workload.Instance) bool {
		return in.Reconciliation.HandledRetry == in.RetryRequest && in.Ready()
	})
}

// paint is one resource, which goes at once.
const paint = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {colour: blue}\n"

// define declares a definition and an instance of it, of one name.
func (i *installation) define(name, manifests string, change ...func(*workload.InstanceSpec)) {
	i.Helper()
	_, err := i.definitions.Put(i.Context(), name, workload.DefinitionSpec{Manifests: manifests})
	require.NoError(i, err)
	spec := workload.InstanceSpec{Definition: name, Runtime: "main"}
	for _, c := range change {
		c(&spec)
	}
	_, err = i.instances.Put(i.Context(), name, spec)
	require.NoError(i, err)
}

// remove deletes an instance, and waits until it is gone.
func (i *installation) remove(name string) {
	i.Helper()
	_, err := i.instances.Delete(i.Context(), name)
	require.NoError(i, err)
	i.until(name, func(in *workload.Instance) bool { return in == nil })
}

// patient is for how long what many instances have to do may take.
const patient = 20 * time.Minute

// eventually calls a function until it has nothing to say.
func (i *installation) eventually(wrong func() string) {
	i.Helper()
	for until := time.Now().Add(patient); ; {
		text := wrong()
		if text == "" {
			return
		}
		require.True(i, time.Now().Before(until), text)
		pause(i.Context(), 100*time.Millisecond)
	}
}

// pause waits in real time: what happens meanwhile happens in other processes.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// kubeconfigOf writes an access as a kubeconfig.
func kubeconfigOf(t testing.TB, cfg *rest.Config) string {
	t.Helper()
	all := clientcmdapi.NewConfig()
	all.Clusters["c"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData, TLSServerName: cfg.ServerName}
	all.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData, Token: cfg.BearerToken}
	all.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	all.CurrentContext = "x"
	text, err := clientcmd.Write(*all)
	require.NoError(t, err)
	return string(text)
}

// untouched checks that a cluster has the objects that it had before, and no others.
func untouched(t *testing.T, c *kubetest.Cluster, before []kubetest.Object) {
	t.Helper()
	after, err := c.Objects(t.Context())
	require.NoError(t, err)
	had, has := map[kubetest.Object]bool{}, map[kubetest.Object]bool{}
	for _, o := range before {
		had[o] = true
	}
	for _, o := range after {
		has[o] = true
		if !had[o] {
			t.Errorf("left behind: %s", o)
		}
	}
	for _, o := range before {
		if !has[o] {
			t.Errorf("gone: %s", o)
		}
	}
}
