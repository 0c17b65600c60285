package workload

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
)

// streams knows the watches of a client. It is safe for concurrent use.
type streams struct {
	next http.RoundTripper

	mu     sync.Mutex
	down   bool // new ones fail
	asked  map[string]int
	opened map[string]map[*stream]bool // by path
}

// stream is the answer to a watch.
type stream struct {
	io.ReadCloser
	all   *streams
	path  string
	mu    sync.Mutex
	ended bool
}

func (s *streams) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") == "" {
		return s.next.RoundTrip(r)
	}
	s.mu.Lock()
	s.asked[r.URL.Path]++
	down := s.down
	s.mu.Unlock()
	if down {
		return nil, &url.Error{Op: "Get", URL: r.URL.Path, Err: io.ErrUnexpectedEOF}
	}
	answer, err := s.next.RoundTrip(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		return answer, err
	}
	one := &stream{ReadCloser: answer.Body, all: s, path: r.URL.Path}
	answer.Body = one
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened[one.path] == nil {
		s.opened[one.path] = map[*stream]bool{}
	}
	s.opened[one.path][one] = true
	return answer, nil
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.ended {
		return n, io.EOF
	}
	return n, err
}

func (s *stream) Close() error {
	s.all.mu.Lock()
	delete(s.all.opened[s.path], s)
	s.all.mu.Unlock()
	return s.ReadCloser.Close()
}

// end ends all watches, as a server does that has had enough of them.
func (s *streams) end() {
	s.mu.Lock()
	var all []*stream
	for _, of := range s.opened {
		for one := range of {
			all = append(all, one)
		}
	}
	s.mu.Unlock()
	for _, one := range all {
		one.mu.Lock()
		one.ended = true
		one.mu.Unlock()
		_ = one.ReadCloser.Close() // lets Read go
	}
}

// refuse has new watches fail, or not.
func (s *streams) refuse(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// ever counts the watches that were ever asked for, by path.
func (s *streams) ever() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.asked)
}

// open counts those that are open.
func (s *streams) open() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := map[string]int{}
	for path, of := range s.opened {
		if len(of) > 0 {
			n[path] = len(of)
		}
	}
	return n
}

// patience is for how long anything may take that takes seconds at the most.
const patience = 5 * time.Minute

// until polls: a watch does not tell when it is open.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); <-time.After(20 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "not in time: %s", what)
	}
}

// R39: there is one watch per cluster and kind, however many instances there are. It is opened anew when the server ends it,
// when it cannot be opened for a while, and when the API server was killed and comes back while nobody reconciles anything; and
// what others change and delete is noticed afterwards, even what they deleted in between.
func TestClusterWatchesAreSharedAndOpenAnew(t *testing.T) {
	kube := kubetest.Own(t)
	ctx, core := t.Context(), kube.Client().CoreV1()
	all := &streams{asked: map[string]int{}, opened: map[string]map[*stream]bool{}}
	cfg := kube.Config()
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		all.next = next
		return all
	})
	var mu sync.Mutex
	told := map[string]string{}
	c, err := connect(cfg, "test", func(instance, reason string) {
		mu.Lock()
		defer mu.Unlock()
		told[instance+" "+reason] = reason
	})
	require.NoError(t, err)
	t.Cleanup(c.close)

	const n = 10
	var instances []*Instance
	var wanteds [][]wanted
	for k := range n {
		name := fmt.Sprintf("i-%d", k)
		in := &Instance{Name: name, UID: name, Spec: InstanceSpec{Namespace: kube.Namespace(t)}}
		instances, wanteds = append(instances, in), append(wanteds, planned(t, c, in))
	}
	converged := func(k int) {
		t.Helper()
		until(t, instances[k].Name+" is ready", func() bool {
			waiting, err := converge(ctx, c, instances[k], wanteds[k])
			require.NoError(t, err)
			return waiting == ""
		})
	}
	for k := range n {
		converged(k)
	}
	one := map[string]int{"/api/v1/configmaps": 1, "/apis/apps/v1/deployments": 1}
	require.Equal(t, one, all.open())
	require.Equal(t, one, all.ever())

	// noticed changes or deletes a map, in between does what else there is, and waits until the map's instance is told.
	noticed := func(k int, gone bool, between func()) {
		t.Helper()
		ns, what := instances[k].Spec.Namespace, "changed"
		if gone {
			what = "is gone"
			require.NoError(t, core.ConfigMaps(ns).Delete(ctx, "web", metav1.DeleteOptions{}))
		} else {
			_, err := core.ConfigMaps(ns).Patch(ctx, "web", types.MergePatchType, []byte(`{"data":{"colour":"green"}}`), metav1.PatchOptions{FieldManager: "a-hand"})
			require.NoError(t, err)
		}
		between()
		want := fmt.Sprintf("%s ConfigMap web in %s %s", instances[k].Name, ns, what)
		until(t, want, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return told[want] != ""
		})
		converged(k)
		require.Len(t, instances[k].Status.Drift, 1)
		m, err := core.ConfigMaps(ns).Get(ctx, "web", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "blue", m.Data["colour"])
	}
	reopened := func() {
		t.Helper()
		until(t, "the watches are open", func() bool { return fmt.Sprint(all.open()) == fmt.Sprint(one) })
	}
	nothing := func() {}
	noticed(0, false, nothing)
	noticed(1, true, nothing)

	all.end()
	reopened()
	noticed(2, false, nothing)

	all.refuse(true)
	all.end()
	until(t, "the watches have ended", func() bool { return len(all.open()) == 0 })
	noticed(3, true, func() { all.refuse(false) })
	reopened()

	require.NoError(t, kube.Kill(kubetest.APIServer))
	until(t, "the watches have ended", func() bool { return len(all.open()) == 0 })
	require.NoError(t, kube.Restart(kubetest.APIServer))
	reopened()
	noticed(4, false, nothing)
	noticed(5, true, nothing)

	require.Equal(t, one, all.open(), "still one each")
	for path, asked := range all.ever() {
		t.Logf("%s was watched %d times", path, asked)
		require.Less(t, asked, 40, "%s: tries to open it are to grow rare", path)
	}
}
