package realtime

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/broker"
)

// nodeEnv is what a node of a cluster needs to know, as JSON.
const nodeEnv = "EVENKEEL_E2E_NODE"

type nodeConfig struct {
	Dir   string
	Ports []int
	Index int
}

// node is the main program of a node. It prints a line when it accepts clients, and ends with its standard input.
func node() error {
	var cfg nodeConfig
	if err := json.Unmarshal([]byte(os.Getenv(nodeEnv)), &cfg); err != nil {
		return err
	}
	s, err := broker.StartWith(broker.NodeOptions(cfg.Dir, cfg.Ports, cfg.Index))
	if err != nil {
		return err
	}
	fmt.Println("up")
	_, err = io.Copy(io.Discard, os.Stdin)
	broker.Stop(s)
	return err
}

// nodes are three brokers in processes of their own, joined and on files.
type nodes struct {
	t       *testing.T
	cfg     nodeConfig
	running []*exec.Cmd
}

// startNodes starts them, and a rig on them whose replicas search for nothing: what a change loses stays lost.
func startNodes(t *testing.T) (*nodes, *rig) {
	t.Helper()
	const size = 3
	ports, err := broker.FreePorts(2 * size)
	require.NoError(t, err)
	n := &nodes{t: t, cfg: nodeConfig{Dir: t.TempDir(), Ports: ports}, running: make([]*exec.Cmd, size)}
	t.Cleanup(func() {
		for i := range n.running {
			n.kill(i)
		}
	})
	var urls []string
	for i := range size {
		n.start(i)
		urls = append(urls, fmt.Sprintf("127.0.0.1:%d", ports[size+i]))
	}
	r := &rig{t: t, replicas: size, resync: time.Hour, natsURL: strings.Join(urls, ",")}
	r.startAPI()
	return n, r
}

// start starts a node and waits until it accepts clients.
func (n *nodes) start(i int) {
	n.t.Helper()
	self, err := os.Executable()
	require.NoError(n.t, err)
	cfg := n.cfg
	cfg.Index = i
	text, err := json.Marshal(cfg)
	require.NoError(n.t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), nodeEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	_, err = cmd.StdinPipe() // ends with this process, and the node with it
	require.NoError(n.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(n.t, err)
	require.NoError(n.t, cmd.Start())
	n.running[i] = cmd
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(n.t, err)
	require.Equal(n.t, "up\n", line)
}

// kill is kill -9.
func (n *nodes) kill(i int) {
	if cmd := n.running[i]; cmd != nil {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // says that it was killed
		n.running[i] = nil
	}
}

// leader waits until a stream has a leader and all its replicas have caught up, and returns the leader.
func (n *nodes) leader(js jetstream.JetStream, stream string) (leader int) {
	n.t.Helper()
	eventually(n.t, func() error {
		ctx, cancel := context.WithTimeout(n.t.Context(), 5*time.Second)
		defer cancel()
		s, err := js.Stream(ctx, stream)
		if err != nil {
			return err
		}
		c := s.CachedInfo().Cluster
		if c == nil || c.Leader == "" {
			return errors.New("nobody leads " + stream)
		}
		for _, r := range c.Replicas {
			if !r.Current || r.Offline {
				return fmt.Errorf("%s has not caught up with %s", r.Name, stream)
			}
		}
		leader, err = strconv.Atoi(strings.TrimPrefix(c.Leader, "node"))
		return err
	})
	return leader
}

// TestClusterLosesNothingWithItsLeaders kills the leader of a stream again and again, at random and without warning, while
// changes come in. EVENKEEL_LOSSES says how often, EVENKEEL_SEED repeats the choices, though not the moments.
func TestClusterLosesNothingWithItsLeaders(t *testing.T) {
	t.Parallel()
	losses, seed := 1, rand.Uint64()
	for name, read := range map[string]func(text string) (err error){
		"EVENKEEL_LOSSES": func(text string) (err error) { losses, err = strconv.Atoi(text); return err },
		"EVENKEEL_SEED":   func(text string) (err error) { seed, err = strconv.ParseUint(text, 10, 64); return err },
	} {
		if text := os.Getenv(name); text != "" {
			require.NoError(t, read(text), name)
		}
	}
	random := rand.New(rand.NewPCG(seed, 0))
	n, r := startNodes(t)
	js, err := jetstream.New(r.connect())
	require.NoError(t, err)
	r.spawn("a")
	r.spawn("b")

	const objects = 60
	values := make([]int, objects)
	change := func(i int) {
		values[i]++
		r.put(fmt.Sprintf("o%d", i), job{Millis: 20, Value: values[i]})
	}
	for i := range objects {
		change(i)
	}
	began, changes := time.Now(), objects
	for loss := range losses {
		stream := []string{names.WorkStream(), "KV_" + names.LockBucket()}[random.IntN(2)]
		lead := n.leader(js, stream)
		n.kill(lead)
		for range 1 + random.IntN(100) { // with the node away for so long
			change(random.IntN(objects))
			changes++
		}
		n.start(lead)
		change(random.IntN(objects))
		t.Logf("%s: %d of %d: node %d was killed, which led %s", time.Since(began).Round(time.Second), loss+1, losses, lead, stream)
	}
	for i, value := range values {
		require.Equal(t, value, r.converged(fmt.Sprintf("o%d", i)).Spec.Value)
	}
	t.Logf("seed %d: %d changes among %d losses in %s", seed, changes+losses, losses, time.Since(began).Round(time.Second))
}
