// Package pgtest starts a PostgreSQL server for tests: a private one in a temporary folder, once per test binary, with a
// database for each test.
package pgtest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// startWithin bounds the start of a server, which takes less than a second.
const startWithin = 30 * time.Second

// errMissing: there is no PostgreSQL on this machine.
var errMissing = errors.New("needs PostgreSQL: apt-get install postgresql-15, or put initdb and postgres on the PATH")

var (
	starting sync.Mutex
	shared   *Server
	last     int // number of the last database; guarded by starting
)

// Database makes an empty database and returns its URL. The server is the test binary's, and is stopped by [Stop]. Without
// PostgreSQL on the machine the test is skipped, in CI it fails.
func Database(t testing.TB) string {
	t.Helper()
	starting.Lock()
	defer starting.Unlock()
	if shared == nil {
		shared = start(t, false)
	}
	last++
	url, err := shared.Create(fmt.Sprintf("test%d", last))
	if err != nil {
		t.Fatal(err)
	}
	return url
}

// Own starts a durable server for one test alone, which may kill it, and skips as [Database] does. It ends with the test.
func Own(t testing.TB) *Server {
	t.Helper()
	s := start(t, true)
	t.Cleanup(s.Stop)
	return s
}

func start(t testing.TB, durable bool) *Server {
	t.Helper()
	s, err := Start(durable)
	if errors.Is(err, errMissing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Stop stops the server that [Database] has started, if it has. Call it at the end of TestMain.
func Stop() {
	starting.Lock()
	defer starting.Unlock()
	if shared != nil {
		shared.Stop()
		shared = nil
	}
}

// Server is a PostgreSQL server of its own.
type Server struct {
	dir, bin string
	port     int
	durable  bool
	process  *exec.Cmd
	log      bytes.Buffer // of the process; read it after it has ended
}

// Start makes a server and starts it. Unless it is durable it does not wait for the disk, and a crash of the machine may
// spoil it; being killed does not.
func Start(durable bool) (*Server, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "evenkeel-postgres-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, bin: bin, durable: durable}
	if err := s.initialize(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.Restart(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

func (s *Server) initialize() error {
	if err := giveAway(s.dir); err != nil {
		return err
	}
	init := s.command(filepath.Join(s.bin, "initdb"), "-D", s.data(), "-U", "test", "-A", "trust", "-N", "--no-locale", "-E", "UTF8")
	if out, err := init.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	address, err := netip.ParseAddrPort(l.Addr().String())
	s.port = int(address.Port())
	return errors.Join(err, l.Close())
}

// Restart starts the server on its data, after [Server.Kill].
func (s *Server) Restart() error {
	args := []string{"-D", s.data(), "-p", strconv.Itoa(s.port), "-h", "127.0.0.1", "-k", ""}
	if !s.durable {
		args = append(args, "-F")
	}
	// A shell watches over it that ends it when this process is gone, however that went: then its standard input ends. The
	// server is the process itself: if it were a child of the shell, nobody could tell when the last trace of one that was
	// killed is gone, and the next would refuse to start beside it.
	const watched = `exec 3<&0; (read _ <&3; kill -QUIT $$) & exec "$@" 3<&- </dev/null`
	s.process = s.command("/bin/sh", append([]string{"-c", watched, "sh", filepath.Join(s.bin, "postgres")}, args...)...)
	s.log.Reset()
	s.process.Stderr = &s.log
	if _, err := s.process.StdinPipe(); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	if err := s.process.Start(); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	for {
		err := s.ask(ctx, "SELECT 1")
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			s.Kill()
			return fmt.Errorf("postgres does not answer within %s: %w\n%s", startWithin, err, &s.log)
		}
		pause := time.NewTimer(20 * time.Millisecond)
		<-pause.C
	}
}

// Create makes an empty database and returns its URL.
func (s *Server) Create(name string) (url string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	return s.url(name), s.ask(ctx, "CREATE DATABASE "+name)
}

func (s *Server) ask(ctx context.Context, statement string) error {
	db, err := sql.Open("pgx", s.url("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // one statement was all
	_, err = db.ExecContext(ctx, statement)
	return err
}

func (s *Server) url(database string) string {
	return fmt.Sprintf("postgres://test@127.0.0.1:%d/%s?sslmode=disable", s.port, database)
}

// Kill is kill -9 of the whole server.
func (s *Server) Kill() {
	killAll(s.process)
	_ = s.process.Wait() // it says that it was killed
}

// Stop ends the server and removes its data.
func (s *Server) Stop() {
	s.Kill()
	_ = os.RemoveAll(s.dir) // a temporary folder
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...) //nolint:gosec,noctx // programs of PostgreSQL; they are stopped by name, not by a context
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "HOME="+s.dir)
	unprivileged(cmd)
	return cmd
}

// binaries finds the folder that has initdb and postgres: where Debian puts them, the newest first, or on the PATH.
func binaries() (string, error) {
	folders, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // fails only on a malformed pattern
	slices.Sort(folders)
	slices.Reverse(folders)
	if p, err := exec.LookPath("initdb"); err == nil {
		folders = append(folders, filepath.Dir(p))
	}
	for _, f := range folders {
		if _, err := os.Stat(filepath.Join(f, "initdb")); err == nil && !strings.Contains(f, " ") {
			return f, nil
		}
	}
	return "", errMissing
}
