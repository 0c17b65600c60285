package workload_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
)

// What a cluster may cost at the most: its client, what it serves, and three watches.
const (
	maxHeapOfCluster        = 4 << 20
	maxGoroutinesOfCluster  = 40
	maxConnectionsOfCluster = 2
)

// manyClusters are many runtimes of one controller, each over a link of its own, with an instance each.
type manyClusters struct {
	*installation
	links     []*kubetest.Link
	namespace string
}

// notOfClusters are goroutines of the links, and of connections to the Evenkeel API, as many as there were workers at once: those
// to clusters are of HTTP/2.
var notOfClusters = []string{"kubetest.(*Link)", "net/http.(*persistConn)", "net/http.(*conn)"}

// usage is what this process holds.
type usage struct {
	heap        uint64 // bytes
	goroutines  int    // without notOfClusters
	watching    int    // of them: those of watches
	connections int
}

func (f *manyClusters) usage() (u usage) {
	f.Helper()
	for range 3 { // what one collection frees may have kept more
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.heap = m.HeapAlloc
	for _, l := range f.links {
		u.connections += l.Connections()
	}
	var text bytes.Buffer
	require.NoError(f, pprof.Lookup("goroutine").WriteTo(&text, 1))
	_, stacks, _ := strings.Cut(text.String(), "\n") // behind the headline
	for stack := range strings.SplitSeq(stacks, "\n\n") {
		n, _, _ := strings.Cut(strings.TrimSpace(stack), " @ ")
		count, err := strconv.Atoi(n)
		if err != nil || slices.ContainsFunc(notOfClusters, func(of string) bool { return strings.Contains(stack, of) }) {
			continue
		}
		u.goroutines += count
		if strings.Contains(stack, "client-go/tools/cache.") {
			u.watching += count
		}
	}
	return u
}

func (u usage) String() string {
	return fmt.Sprintf("%d kB of heap, %d goroutines, %d of them of watches, %d connections", u.heap>>10, u.goroutines, u.watching, u.connections)
}

// comes waits until what the process holds is so.
func (f *manyClusters) comes(to string, is func(usage) bool) usage {
	f.Helper()
	for until := time.Now().Add(patience); ; {
		u := f.usage()
		if is(u) {
			return u
		}
		require.True(f, time.Now().Before(until), "it does not come to %s: %s", to, u)
		<-time.After(200 * time.Millisecond)
	}
}

func named(k int) string { return fmt.Sprintf("c-%03d", k) }

// add declares a runtime and an instance there.
func (f *manyClusters) add(k int) {
	f.Helper()
	kube, link := kubetest.Start(f.TB), f.links[k]
	access := link.Over(kube.Config())
	access.CAData = append(fmt.Appendf(nil, "cluster %d\n", k), access.CAData...) // client-go shares what is the same
	_, err := f.runtimes.Put(f.Context(), named(k), workload.RuntimeSpec{Kubeconfig: kubeconfigOf(f.TB, access)})
	require.NoError(f, err)
	_, err = f.instances.Put(f.Context(), named(k), workload.InstanceSpec{
		Definition: "plain", Runtime: named(k), Namespace: f.namespace, Variables: map[string]string{"name": named(k)},
	})
	require.NoError(f, err)
}

// come waits until some of the instances are ready with a generation of the definition.
func (f *manyClusters) come(generation int64, which func(k int) bool) {
	f.Helper()
	began := time.Now()
	n := 0
	for k := range f.links {
		if which(k) {
			n++
			f.until(named(k), func(in *workload.Instance) bool {
				return in.Ready() && in.Status.DefinitionGeneration == generation
			})
		}
	}
	f.Logf("%d instances came to generation %d in %s", n, generation, time.Since(began).Round(time.Millisecond))
}

// clean deletes everything of a cluster.
func (f *manyClusters) clean(ctx context.Context) {
	f.Helper()
	for k := range f.links {
		_, err := f.instances.Delete(ctx, named(k))
		require.NoError(f, err)
	}
	for k := range f.links {
		_, err := f.runtimes.Delete(ctx, named(k))
		require.NoError(f, err)
	}
	for k := range f.links {
		_, err := f.runtimes.WaitFor(ctx, named(k), func(r *workload.Runtime) bool { return r == nil })
		require.NoError(f, err)
	}
}

// TestClusterHundred is EVENKEEL_CLUSTERS clusters in one replica, each with a client, a cache and watches of its own: half of
// them fall silent or are cut off, and the others go on; what each costs is bounded, and nothing of it is left when they are gone.
// It is one cluster behind all links, so that each watch has the resources of all.
func TestClusterHundred(t *testing.T) {
	n := 10
	if text := os.Getenv("EVENKEEL_CLUSTERS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
		require.Greater(t, n, 1, "EVENKEEL_CLUSTERS")
	}
	kube := kubetest.Start(t)
	f := &manyClusters{namespace: kube.Namespace(t)}
	links := make([]*kubetest.Link, n) // they outlive the replica, which closes their connections
	for k := range links {
		links[k] = kube.Link(t)
	}
	f.installation = install(t, 1)
	put := func(colour string) {
		_, err := f.definitions.Put(t.Context(), "plain", workload.DefinitionSpec{
			Manifests: strings.ReplaceAll(plain, "blue", colour), Variables: []workload.Variable{{Name: "name"}},
		})
		require.NoError(t, err)
	}
	put("blue")
	_, err := f.definitions.WaitFor(t.Context(), "plain", (*workload.Definition).Ready)
	require.NoError(t, err)
	none := f.usage()
	f.links = links[:1] // what the first takes is there once, however many there are
	f.add(0)
	f.come(1, func(int) bool { return true })
	before := f.usage()
	f.links = links
	for k := 1; k < n; k++ {
		f.add(k)
	}
	f.come(1, func(int) bool { return true })
	with := f.usage()
	t.Logf("with none: %s; with one: %s; with %d: %s", none, before, n, with)
	t.Logf("each: %d kB of heap, %d goroutines", (int64(with.heap)-int64(before.heap))/int64(n-1)>>10, (with.goroutines-before.goroutines)/(n-1))
	require.Less(t, with.heap, before.heap+uint64(n)*maxHeapOfCluster)
	require.Less(t, with.goroutines, before.goroutines+n*maxGoroutinesOfCluster)
	require.LessOrEqual(t, with.connections, n*maxConnectionsOfCluster)

	for k, l := range links {
		switch k % 4 {
		case 0:
			l.Silence()
		case 2:
			l.Cut()
		}
	}
	put("red")
	f.come(2, func(k int) bool { return k%2 == 1 })
	for k := range n {
		if k%2 == 0 {
			in, err := f.instances.Get(t.Context(), named(k))
			require.NoError(t, err)
			require.Equal(t, int64(1), in.Status.DefinitionGeneration, named(k))
		}
	}
	without := f.usage()
	t.Logf("without half of them: %s", without)
	require.Less(t, without.heap, before.heap+uint64(n)*maxHeapOfCluster)
	require.Less(t, without.goroutines, before.goroutines+n*maxGoroutinesOfCluster)
	for _, l := range links {
		l.Heal()
	}
	f.come(2, func(int) bool { return true })

	f.clean(t.Context())
	gone := f.comes("no watches", func(u usage) bool { return u.watching == 0 })
	t.Logf("without watches: %s", gone)
	// What grows with use, not with clusters: the buffers of the API and of the broker, which run in this process, too. client-go lets
	// go of a transport when it has been collected, and of what that held in the next collection.
	const use = 8 << 20
	gone = f.comes("no connections and little heap", func(u usage) bool {
		return u.connections == 0 && u.goroutines <= none.goroutines+n/2 && u.heap < before.heap+use+(with.heap-before.heap)/10
	})
	t.Logf("without all of them: %s", gone)
}
