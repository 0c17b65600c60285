package kubetest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubebin"
)

// program is that of the cluster.
func program(t *testing.T) string {
	t.Helper()
	p, err := kubebin.Find()
	if errors.Is(err, kubebin.ErrMissing) && os.Getenv("CI") == "" {
		t.Skip("needs a Kubernetes that is built, by make kube:", err)
	}
	require.NoError(t, err)
	return p
}

// alive reports whether a process runs. One that has ended and that nobody has waited for does not.
func alive(pid int) bool {
	if runtime.GOOS == "linux" {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, state, _ := strings.Cut(string(text), ") ")
		return err == nil && !strings.HasPrefix(state, "Z")
	}
	return syscall.Kill(pid, 0) == nil
}

var every = []Component{Etcd, APIServer, ControllerManager, Scheduler, Kwok}

// processes are those of a cluster, by its folder.
func processes(t *testing.T, folder string) (pids []int) {
	t.Helper()
	for _, component := range every {
		pid, err := (&Cluster{folder: folder}).Pid(component)
		require.NoError(t, err)
		require.True(t, alive(pid), component)
		pids = append(pids, pid)
	}
	return pids
}

// gone waits until no process is left.
func gone(t *testing.T, pids []int) {
	t.Helper()
	require.NoError(t, eventually(t.Context(), func(context.Context) error {
		for _, pid := range pids {
			if alive(pid) {
				return fmt.Errorf("%d is left behind", pid)
			}
		}
		return nil
	}))
}

func TestClusterLeavesNothingBehind(t *testing.T) {
	c := Own(t)
	pids := processes(t, c.folder)
	require.NoError(t, c.Close())
	for _, pid := range pids {
		require.False(t, alive(pid))
	}
	require.NoDirExists(t, c.folder)
	require.Error(t, c.Kill(APIServer))
}

func TestClusterEndsWithItsSupervisor(t *testing.T) {
	program(t)
	c, err := New()
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(c.folder) })
	pids := processes(t, c.folder)
	require.NoError(t, c.cmd.Process.Kill())
	require.Error(t, c.Close())
	gone(t, pids)
}

func TestClusterEndsWithTheTests(t *testing.T) {
	program(t)
	self, err := os.Executable()
	require.NoError(t, err)
	tests := exec.Command(self)
	tests.Env = append(os.Environ(), roleEnv+"=holder")
	tests.Stderr = os.Stderr
	out, err := tests.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, tests.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	folder := strings.TrimSpace(line)
	pids := processes(t, folder)

	require.NoError(t, tests.Process.Kill())
	require.Error(t, tests.Wait())
	gone(t, pids)
	require.NoError(t, eventually(t.Context(), func(context.Context) error { // the supervisor tidies up
		if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is left behind: %w", folder, err)
		}
		return nil
	}))
}

// upProcess is the program as a user runs it.
type upProcess struct {
	cmd    *exec.Cmd
	errs   bytes.Buffer
	told   string // what it has said until it was ready
	folder string
	lines  *bufio.Scanner
}

// up starts a cluster as a user does, and reads until it says that it is ready.
func up(t *testing.T, flags ...string) *upProcess {
	t.Helper()
	u := &upProcess{cmd: exec.Command(program(t), append([]string{"up"}, flags...)...)}
	u.cmd.Stderr = &u.errs
	out, err := u.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, u.cmd.Start())
	t.Cleanup(func() {
		_ = u.cmd.Process.Kill()
		_ = os.RemoveAll(u.folder)
	})
	u.lines = bufio.NewScanner(out)
	for u.lines.Scan() {
		u.told += u.lines.Text() + "\n"
		if strings.HasPrefix(u.lines.Text(), "Ctrl-C") {
			u.folder = regexp.MustCompile(`cluster in (\S+)`).FindStringSubmatch(u.told)[1]
			return u
		}
	}
	t.Fatalf("it ends with %v before it is ready:\n%s%s", u.cmd.Wait(), u.told, &u.errs)
	return nil
}

// end waits for the end, and returns the last words.
func (u *upProcess) end() (string, error) {
	var last strings.Builder
	for u.lines.Scan() {
		last.WriteString(u.lines.Text() + "\n")
	}
	err := u.cmd.Wait()
	return last.String() + u.errs.String(), err
}

func TestClusterForPeople(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	u := up(t, "--nodes", "3", "--kubeconfig", config)
	t.Log(u.told)
	pids := processes(t, u.folder)
	require.Contains(t, u.told, "export KUBECONFIG="+config+"\n")
	for _, file := range []string{config, filepath.Join(u.folder, "admin.kubeconfig"), filepath.Join(u.folder, "etcd.key")} {
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), file)
	}
	kubectl := exec.Command(program(t), "kubectl", "get", "nodes", "--no-headers")
	kubectl.Env = append(os.Environ(), "KUBECONFIG="+config)
	nodes, err := kubectl.CombinedOutput()
	require.NoError(t, err, string(nodes))
	require.Regexp(t, `(?s)^node-1 +Ready .*\nnode-2 +Ready .*\nnode-3 +Ready .*\n$`, string(nodes))

	require.NoError(t, u.cmd.Process.Signal(syscall.SIGTERM))
	last, err := u.end()
	require.NoError(t, err, last)
	for _, pid := range pids {
		require.False(t, alive(pid))
	}
	require.NoDirExists(t, u.folder)
	require.NoFileExists(t, config)
}

func TestClusterNamesTheLogOfWhatDies(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "cluster")
	u := up(t, "--dir", folder)
	pids := processes(t, folder)
	require.NoError(t, syscall.Kill(pids[3], syscall.SIGKILL)) // the scheduler
	said, err := u.end()
	require.Error(t, err)
	log := filepath.Join(folder, "logs", "kube-scheduler.log")
	require.Contains(t, said, "kube-scheduler has ended by itself: signal: killed; the end of "+log+":\n")
	require.FileExists(t, log)
	gone(t, pids)

	require.Contains(t, refused(t, "--dir", folder), "the folder "+folder+" is not empty")
}

func TestClusterRefusesToOverwriteAnything(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(config, []byte("apiVersion: v1\n"), 0o600))
	said := refused(t, "--kubeconfig", config)
	require.Contains(t, said, config+" exists and is not of this program")
	kept, err := os.ReadFile(config)
	require.NoError(t, err)
	require.Equal(t, "apiVersion: v1\n", string(kept))
	require.NoDirExists(t, regexp.MustCompile(`cluster in (\S+)`).FindStringSubmatch(said)[1])

	require.Contains(t, refused(t, "--nodes", "0"), "--nodes is 0: it must be between 1 and 1000")
	require.Contains(t, refused(t, "extra"), `up takes no argument "extra"`)
}

// refused starts a cluster that must not start, and returns what it says.
func refused(t *testing.T, flags ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(t), append([]string{"up"}, flags...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	said, err := cmd.CombinedOutput()
	require.Error(t, err, string(said))
	return string(said)
}
