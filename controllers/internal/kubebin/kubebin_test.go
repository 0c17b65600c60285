package kubebin

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// repository makes one in which the module stands on a Kubernetes of one line, and goes there.
func repository(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":            "module example.com/kuberig\n\ngo 1.26\n\nrequire (\n\tk8s.io/kubernetes v1.22.3\n)\n\nreplace k8s.io/kubernetes => ./kubernetes\n",
		"main.go":           "package main\n\nimport \"k8s.io/kubernetes\"\n\nfunc main() { kubernetes.Hello() }\n",
		"kubernetes/k.go":   "package kubernetes\n\nfunc Hello() { println(\"hello\") }\n",
		"kubernetes/go.mod": "module k8s.io/kubernetes\n\ngo 1.26\n",
	} {
		file := filepath.Join(root, module, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	below := filepath.Join(root, "controllers", "internal")
	require.NoError(t, os.MkdirAll(below, 0o755))
	t.Chdir(below)
	t.Setenv(Env, "")
	return root
}

func TestBuildsOnce(t *testing.T) {
	root := repository(t)
	_, err := Find()
	require.ErrorIs(t, err, ErrMissing)

	var said bytes.Buffer
	built, err := Build(t.Context(), &said)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(built, filepath.Join(root, ".cache", "kube")+"/"), built)
	require.Contains(t, said.String(), "building Kubernetes")
	require.Contains(t, said.String(), "built in ")
	hello, err := exec.Command(built).CombinedOutput()
	require.NoError(t, err)
	require.Equal(t, "hello\n", string(hello))

	said.Reset()
	again, err := Build(t.Context(), &said)
	require.NoError(t, err)
	require.Equal(t, built, again)
	require.Empty(t, said.String(), "nothing was to be done")

	main := filepath.Join(root, module, "main.go")
	require.NoError(t, os.WriteFile(main, []byte("package main\n\nfunc main() {"), 0o644))
	_, err = Find()
	require.ErrorIs(t, err, ErrMissing, "the program is that of other sources")
	_, err = Build(t.Context(), &said)
	require.ErrorContains(t, err, "main.go:3:14: syntax error")
	_, err = Find()
	require.ErrorIs(t, err, ErrMissing)
}

func TestBuildIsInterrupted(t *testing.T) {
	repository(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Build(ctx, new(bytes.Buffer))
	require.ErrorIs(t, err, context.Canceled)
	_, err = Find()
	require.ErrorIs(t, err, ErrMissing)
}

func TestFindsWhatItIsTold(t *testing.T) {
	given := filepath.Join(t.TempDir(), "program")
	t.Setenv(Env, given)
	_, err := Find()
	require.ErrorContains(t, err, Env)
	require.NoError(t, os.WriteFile(given, nil, 0o600))
	found, err := Find()
	require.NoError(t, err)
	require.Equal(t, given, found)

	t.Setenv(Env, "")
	t.Chdir(t.TempDir())
	_, err = Find()
	require.ErrorContains(t, err, "run this in a clone of Evenkeel")
}

func TestFollowKeepsTheErrors(t *testing.T) {
	said := "go: downloading k8s.io/api v0.36.3\nk8s.io/api/core/v1\ngithub.com/x/y\nexample.com/" + module + "\n# x\nmain.go:1:2: broken\n"
	require.Equal(t, "# x\nmain.go:1:2: broken", follow(strings.NewReader(said), new(bytes.Buffer)))
}

func TestLinkerFlagsNameTheVersion(t *testing.T) {
	flags := linkerFlags("v1.36.3", time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC))
	for _, want := range []string{
		"-X k8s.io/component-base/version.gitVersion=v1.36.3", "-X k8s.io/client-go/pkg/version.gitMajor=1",
		"-X k8s.io/component-base/version.gitMinor=36", "-X k8s.io/component-base/version.buildDate=2001-02-03T04:05:06Z",
	} {
		require.Contains(t, flags, want)
	}
}
