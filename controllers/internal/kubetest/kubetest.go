// Package kubetest starts a Kubernetes cluster for tests: a real API server, with its controllers, its scheduler and nodes
// on which nothing runs (controllers/kuberig says what is real). One cluster serves a whole test binary, each test in a
// namespace of its own; a test that kills parts of it takes one of its own.
//
// The program that is the cluster takes ten minutes to build, which no test does: make integration builds it first, and so
// does make kube. Until then the tests are skipped, and fail in CI.
package kubetest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubebin"
)

// Component is a process of a cluster.
type Component string

// The components.
const (
	Etcd              Component = "etcd"
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
	Scheduler         Component = "kube-scheduler"
	Kwok              Component = "kwok"
)

// HoldAnnotation on a pod keeps it from becoming ready for as long as it is there.
const HoldAnnotation = "evenkeel.io/hold-pod"

// patience is for how long anything may take that takes seconds at the most.
const patience = 5 * time.Minute

var (
	starting sync.Mutex
	shared   *Cluster
)

// Start returns the test binary's cluster, and starts it if this is the first call. It is stopped by [Stop]. Without the
// program the test is skipped, in CI it fails.
func Start(t testing.TB) *Cluster {
	t.Helper()
	starting.Lock()
	defer starting.Unlock()
	if shared == nil {
		shared = begin(t)
	}
	return shared
}

// Own starts a cluster for one test alone, which may kill what it likes of it, and skips as [Start] does. It ends with the
// test.
func Own(t testing.TB) *Cluster {
	t.Helper()
	c := begin(t)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("stop the cluster: %s", err)
		}
	})
	return c
}

func begin(t testing.TB) *Cluster {
	t.Helper()
	c, err := New()
	if errors.Is(err, kubebin.ErrMissing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Stop stops the cluster that [Start] has started, if it has. Call it at the end of TestMain.
func Stop() {
	starting.Lock()
	defer starting.Unlock()
	if shared == nil {
		return
	}
	if err := shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the Kubernetes cluster:", err)
	}
	shared = nil
}

// Cluster is a cluster that runs. Its methods may be called from several goroutines.
type Cluster struct {
	folder string
	admin  *rest.Config
	client kubernetes.Interface

	cmd      *exec.Cmd // the supervisor, which ends when its input does
	in       io.WriteCloser
	said     bytes.Buffer // its standard error; read it after it has ended
	talk     sync.Mutex   // one command and its answer at a time
	answers  *bufio.Reader
	tellOnce sync.Once
	end      error // of Close; guarded by tellOnce
}

// New starts a cluster and waits until it is of use. The error is kubebin.ErrMissing if there is no program to do it.
func New() (*Cluster, error) {
	program, err := kubebin.Find()
	if err != nil {
		return nil, err
	}
	c := &Cluster{cmd: exec.Command(program, "up", "--control")} //nolint:gosec,noctx // ours; Close ends it
	c.cmd.Stderr = &c.said
	out, err1 := c.cmd.StdoutPipe()
	in, err2 := c.cmd.StdinPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	c.in, c.answers = in, bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := c.answers.ReadString('\n') // it gives up by itself if the cluster does not get up
	folder, ready := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if err != nil || !ready {
		err := c.Close()
		return nil, fmt.Errorf("the Kubernetes cluster does not get up: %w", err)
	}
	c.folder = folder
	if c.admin, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err == nil {
		c.admin.QPS = -1 // tests wait for the cluster, not for themselves
		c.client, err = kubernetes.NewForConfig(c.admin)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close ends all of the cluster and removes its folder. It returns an error if something of it had ended before.
func (c *Cluster) Close() error {
	c.tellOnce.Do(func() {
		_ = c.in.Close() // fails if it has ended
		expired := time.AfterFunc(patience, func() { _ = c.cmd.Process.Kill() })
		defer expired.Stop()
		if err := c.cmd.Wait(); err != nil {
			c.end = fmt.Errorf("%w\n%s", err, &c.said)
		}
	})
	return c.end
}

// Config is an administrator's access. It is a copy.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.admin) }

// Client is an administrator's.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Kubeconfig is a file with an administrator's access.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.folder, "admin.kubeconfig") }

// Logs are the logs of a component.
func (c *Cluster) Logs(component Component) string {
	return filepath.Join(c.folder, "logs", string(component)+".log")
}

// Pid is the process that a component is, or was when it was killed.
func (c *Cluster) Pid(component Component) (int, error) {
	text, err := os.ReadFile(filepath.Join(c.folder, string(component)+".pid"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// Kill is kill -9 of a component. What is in etcd remains. It is for clusters of a test's own, as is Restart.
func (c *Cluster) Kill(component Component) error { return c.command("kill", component) }

// Restart starts a component that was killed, and waits until it serves.
func (c *Cluster) Restart(component Component) error { return c.command("start", component) }

func (c *Cluster) command(verb string, component Component) error {
	c.talk.Lock()
	defer c.talk.Unlock()
	if _, err := fmt.Fprintln(c.in, verb, component); err != nil {
		return fmt.Errorf("%s %s: %w", verb, component, err)
	}
	answer, err := c.answers.ReadString('\n')
	if err != nil {
		return fmt.Errorf("%s %s: the cluster has ended: %w", verb, component, c.Close())
	}
	if answer = strings.TrimSpace(answer); answer != "ok" {
		return fmt.Errorf("%s %s: %s", verb, component, answer)
	}
	return nil
}
