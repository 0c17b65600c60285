//go:build unix

package kubebin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The program is named after everything that it is made of, and after nothing else.
func TestSumIsOfWhatTheProgramIsMadeOf(t *testing.T) {
	root := repository(t)
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(root, module, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	sum := func() string {
		t.Helper()
		at, err := locate()
		require.NoError(t, err)
		return at.program
	}
	write("go.sum", "")
	write("one/a.go", "package one")
	before := sum()
	differs := func(what string) {
		t.Helper()
		now := sum()
		require.NotEqual(t, before, now, what)
		before = now
	}
	write("go.mod", "module example.com/kuberig\n")
	differs("go.mod")
	write("go.sum", "x")
	differs("go.sum")
	write("one/a.go", "package one // changed")
	differs("a source")
	require.NoError(t, os.Rename(filepath.Join(root, module, "one"), filepath.Join(root, module, "two")))
	differs("its name")
	buildFlags = append(buildFlags, "-x")
	defer func() { buildFlags = buildFlags[:len(buildFlags)-1] }()
	differs("the flags")
	write("two/a_test.go", "package two")
	write("README.md", "changed")
	require.Equal(t, before, sum(), "what is not in the program")
}

// toolchain puts a go before the real one, which does as a script says: $3 is what it is to build.
func toolchain(t *testing.T, script string) {
	t.Helper()
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "go"), []byte("#!/bin/sh\n"+script), 0o755))
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
}

// Whoever looks finds a whole program or none, and nothing else is left.
func TestUnfinishedProgramsAreNotFound(t *testing.T) {
	root := repository(t)
	toolchain(t, "echo half > $3; test \"$GOWORK$CGO_ENABLED\" = off0 || echo '# the environment is wrong' >&2; echo '# broken' >&2; exit 1\n")
	_, err := Build(t.Context(), io.Discard)
	require.ErrorContains(t, err, "broken")
	require.NotContains(t, err.Error(), "the environment is wrong")
	_, err = Find()
	require.ErrorIs(t, err, ErrMissing)
	left, err := filepath.Glob(filepath.Join(root, ".cache", "kube", "*", "*"))
	require.NoError(t, err)
	require.Empty(t, left)
	toolchain(t, "echo whole > $3\n")
	_, err = Build(t.Context(), io.Discard)
	require.NoError(t, err)
	left, err = filepath.Glob(filepath.Join(root, ".cache", "kube", "*", "*"))
	require.NoError(t, err)
	require.Len(t, left, 1)
}

// A build that is stopped says why, and lets go end its compilers.
func TestBuildThatIsStoppedSaysWhy(t *testing.T) {
	repository(t)
	folder := t.TempDir()
	began, ended := filepath.Join(folder, "began"), filepath.Join(folder, "ended")
	require.NoError(t, syscall.Mkfifo(began, 0o600))
	toolchain(t, fmt.Sprintf("trap 'echo > %s; kill $!; exit 1' INT\nsleep 60 2>&- &\necho > %s\nwait\n", ended, began))
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	go func() {
		_, err := os.ReadFile(began) // when it begins
		cancel(errors.Join(enough, err))
	}()
	_, err := Build(ctx, io.Discard)
	require.ErrorIs(t, err, enough)
	require.FileExists(t, ended)
}

// A build says from time to time how far it is, and of many errors the last.
func TestFollowSaysHowFarItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		said, say := io.Pipe()
		rest := make(chan string)
		go func() { rest <- follow(said, &out) }()
		for _, line := range []string{"", "go: downloading k8s.io/api v0.36.3", "k8s.io/api/core/v1\ngithub.com/x/y", "example.com/" + module} {
			_, err := io.WriteString(say, line+"\n")
			require.NoError(t, err)
			time.Sleep(reportEvery)
			synctest.Wait()
		}
		for i := range 40 {
			_, err := fmt.Fprintf(say, "main.go:%d: broken\n", i)
			require.NoError(t, err)
		}
		require.NoError(t, say.Close())
		require.Equal(t, "main.go:10: broken", strings.Split(<-rest, "\n")[0])
		require.Equal(t, `     10s     0 packages compiled, now listing what there is to do
     20s     0 packages compiled, now downloading k8s.io/api v0.36.3
     30s     2 packages compiled, now github.com/x/y
     40s     2 packages compiled, now linking
`, out.String())
	})
}

// The version is that of the requirement, however it is written.
func TestVersionIsThatOfTheRequirement(t *testing.T) {
	folder := t.TempDir()
	for text, want := range map[string]string{
		"module x\n\nrequire k8s.io/kubernetes v1.2.3\n":                "v1.2.3",
		"module x\n\nrequire (\n\tk8s.io/kubernetes v1.2.4 // why\n)\n": "v1.2.4",
		"module x\n\nreplace k8s.io/kubernetes => ../x\n":               "",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, "go.mod"), []byte(text), 0o600))
		found, err := kubernetesVersion(folder)
		require.Equal(t, want, found)
		require.Equal(t, want == "", err != nil, err)
	}
}
