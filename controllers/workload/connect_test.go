package workload

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

const fileOfKubeconfig = `
apiVersion: v1
kind: Config
current-context: x
contexts: [{name: x, context: {cluster: c, user: u}}, {name: nobody, context: {cluster: c, user: v}}, {name: nowhere, context: {cluster: d, user: u}}]
clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443"}}]
users: [{name: u, user: {token: first}}]
`

// A file of the folder is read anew when it changes, and only a file of the folder.
func TestKubeconfigFiles(t *testing.T) {
	folder := t.TempDir()
	write := func(text string) { require.NoError(t, os.WriteFile(filepath.Join(folder, "a"), []byte(text), 0o600)) }
	spec := RuntimeSpec{KubeconfigFile: "a", QPS: 7, Burst: 9}
	_, _, err := connection(&spec, folder)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorIs(t, err, errRuntime, "and not the cluster")
	require.NotContains(t, err.Error(), folder)
	write(fileOfKubeconfig)
	cfg, first, err := connection(&spec, folder)
	require.NoError(t, err)
	require.Equal(t, "first", cfg.BearerToken)
	require.InDelta(t, 7, cfg.QPS, 0)
	require.Equal(t, 9, cfg.Burst)
	require.Equal(t, requestTimeout, cfg.Timeout)
	_, same, err := connection(&spec, folder)
	require.NoError(t, err)
	require.Equal(t, first, same)
	write(strings.Replace(fileOfKubeconfig, "token: first", "token: second", 1))
	cfg, second, err := connection(&spec, folder)
	require.NoError(t, err)
	require.Equal(t, "second", cfg.BearerToken)
	require.NotEqual(t, first, second, "another connection is made")

	for _, name := range []string{".", "..", "../a", "/etc/passwd", "b/../a", "a/"} {
		_, _, err := connection(&RuntimeSpec{KubeconfigFile: name}, folder)
		require.ErrorContains(t, err, "want the name of a file, not a path", name)
	}
}

// What is wrong in a kubeconfig is said in our words, which quote nothing of it.
func TestKubeconfigsThatCannotBeUsed(t *testing.T) {
	certificate := func(field string) string {
		return strings.Replace(fileOfKubeconfig, "token: first", field+": /hunter2", 1)
	}
	for want, spec := range map[string]RuntimeSpec{
		"context nobody: its cluster or its user is missing":  {Kubeconfig: fileOfKubeconfig, Context: "nobody"},
		"context nowhere: its cluster or its user is missing": {Kubeconfig: fileOfKubeconfig, Context: "nowhere"},
		"client-certificate names a file":                     {Kubeconfig: certificate("client-certificate")},
		"client-key names a file":                             {Kubeconfig: certificate("client-key")},
		"kubeconfig: context x cannot be used":                {Kubeconfig: strings.Replace(fileOfKubeconfig, "token: first", "token: a, username: hunter2, password: hunter2", 1)},
	} {
		_, _, err := connection(&spec, "")
		require.ErrorIs(t, err, errRuntime, want)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "hunter2", want)
	}
}

// silence is a cluster that does not answer, and what it was asked.
type silence struct{ asked []*url.URL }

func (s *silence) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked = append(s.asked, r.URL)
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// Requests to a cluster that is silent end: the one that asks whether it is there after 5 seconds, those of a discovery after
// 10, any other after 20. Watches go on for as long as they are left open.
func TestRequestsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := new(silence)
		c, err := connect(&rest.Config{Host: "https://192.0.2.1", Transport: over, Timeout: requestTimeout, QPS: -1}, "", func(string, string) {})
		require.NoError(t, err)
		took := func(what func() error) time.Duration {
			began := time.Now()
			err := what()
			require.True(t, unreachable(err), err)
			return time.Since(began)
		}
		require.Equal(t, helloTimeout, took(func() error { return c.greet(t.Context()) }))
		_, _, err = c.mapping(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
		require.True(t, unreachable(err), err)
		require.Len(t, over.asked, 1, "it is down, and nobody asks it for now")
		over.asked = nil
		require.NoError(t, c.note(nil))
		_, _, err = c.mapping(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
		require.True(t, unreachable(err), err)
		require.NotEmpty(t, over.asked)
		for _, u := range over.asked { // how long it takes cannot be said: client-go pauses after it has logged an error
			require.Equal(t, discoveryTimeout.String(), u.Query().Get("timeout"), u)
		}
		require.Equal(t, requestTimeout, took(func() error {
			_, err := c.client.Resource(mapResource).Get(t.Context(), "m", metav1.GetOptions{})
			return err
		}))
		over.asked = nil
		began := time.Now()
		go func() {
			time.Sleep(time.Hour)
			c.close()
		}()
		_, err = c.watches.client.Resource(mapResource).Watch(c.watches.ctx, metav1.ListOptions{})
		require.Error(t, err)
		require.Equal(t, time.Hour, time.Since(began))
		require.NotContains(t, over.asked[0].Query(), "timeout")
	})
}

// A connection that is made anew may lead to another cluster.
func TestClusterIsIdentifiedAfterDialling(t *testing.T) {
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := `{"gitVersion":"v1.36.3"}`
		if strings.HasSuffix(r.URL.Path, "/kube-system") {
			asked++
			answer = `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"kube-system","uid":"b"}}`
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer)) // who does not get it complains
	}))
	defer srv.Close()
	c, err := connect(&rest.Config{Host: srv.URL, QPS: -1}, "", func(string, string) {})
	require.NoError(t, err)
	defer c.close()
	c.uid = "a" // of a connection before
	is := func(want string, requests int) {
		t.Helper()
		uid, err := c.identity(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, uid)
		require.Equal(t, requests, asked)
	}
	is("a", 0)
	require.NoError(t, c.greet(t.Context())) // which dials
	is("b", 1)
	require.NoError(t, c.greet(t.Context()))
	is("b", 1)
	c.dialer.close()
	require.NoError(t, c.greet(t.Context()))
	is("b", 2)
}

// A connection that is closed leaves none open to the cluster.
func TestClosedClusterLeavesNoConnectionOpen(t *testing.T) {
	closed := make(chan struct{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{}`)) // who does not get it complains
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			close(closed)
		}
	}
	srv.Start()
	defer srv.Close()
	c, err := connect(&rest.Config{Host: srv.URL, QPS: -1}, "", func(string, string) {})
	require.NoError(t, err)
	require.NoError(t, c.greet(t.Context()))
	c.close()
	select {
	case <-closed:
	case <-time.After(patience): // real time: nothing tells that it stays open
		t.Fatal("the connection is left open")
	}
}
