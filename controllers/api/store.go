package api

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

const (
	// maxTries bounds how often a transaction is begun anew after it lost a race. SQLite makes writers wait in line, so
	// there more than one try means another process that held the lock for busyTimeout.
	maxTries = 5
	// busyTimeout is how long a statement waits for another process's transaction; maxTries of it stay near the client's
	// timeout of 10 s.
	busyTimeout = 2 * time.Second
	// readers is the number of connections that read a file. SQLite reads do not wait for the writer.
	readers = 4
)

//go:embed migrations/*.sql
var migrations embed.FS

// errLostRace: another writer was there between reading a row and writing it; begin anew.
var errLostRace = errors.New("another write came first")

// store is the database. Statements are in the SQL that SQLite and PostgreSQL have in common.
type store struct {
	write *sql.DB // one connection: SQLite has one writer at a time, and a queue here is fairer than its lock
	read  *sql.DB // the same database, unable to write
}

func openStore(ctx context.Context, name string) (*store, error) {
	path, ok := strings.CutPrefix(name, "sqlite:")
	if !ok || path == "" {
		return nil, fmt.Errorf(`Config.Store %q: want "sqlite:PATH" or "sqlite::memory:"`, name)
	}
	write, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	write.SetMaxOpenConns(1)
	s := &store{write: write, read: write}
	if path != ":memory:" { // in memory each connection would be a database of its own
		if s.read, err = sql.Open("sqlite", dsn(path)+"&_pragma=query_only(1)"); err != nil {
			return nil, errors.Join(fmt.Errorf("open %s: %w", name, err), write.Close())
		}
		s.read.SetMaxOpenConns(readers)
		s.read.SetMaxIdleConns(readers)
	}
	if err := s.migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("migrate %s: %w", name, err), s.close())
	}
	return s, nil
}

// dsn is the SQLite URI of a path. Transactions begin with the write lock: one that reads first and then has to wait for
// the lock would be refused, because what it has read may be outdated (SQLITE_BUSY_SNAPSHOT).
func dsn(path string) string {
	escape := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23")
	return fmt.Sprintf("file:%s?_txlock=immediate&_pragma=busy_timeout(%d)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)",
		escape.Replace(path), busyTimeout.Milliseconds())
}

// migrate brings the schema up to date. APIs that start together race for it, and goose has no lock for SQLite: whoever
// loses finds the work done when it looks again.
func (s *store) migrate(ctx context.Context) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		p, err := goose.NewProvider(goose.DialectSQLite3, s.write, files, goose.WithDisableGlobalRegistry(true))
		if err == nil {
			_, err = p.Up(ctx)
		}
		if err == nil || try == maxTries {
			return err
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

func (s *store) close() error {
	var err error
	if s.read != s.write {
		err = s.read.Close()
	}
	return errors.Join(err, s.write.Close())
}

// transact runs do in a transaction that is committed unless do fails. When it loses a race it begins anew, a few times,
// so do may be called more than once. It does not after a failed commit, which may have taken effect.
func (s *store) transact(ctx context.Context, do func(tx *sql.Tx) error) error {
	for try := 1; ; try++ {
		tx, err := s.write.BeginTx(ctx, nil)
		if err == nil {
			if err = do(tx); err == nil {
				return tx.Commit()
			}
			tx.Rollback() // the error that matters is do's
		}
		if !lostRace(err) || try == maxTries {
			return err
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

func lostRace(err error) bool {
	var e *sqlite.Error
	if errors.As(err, &e) {
		primary := e.Code() & 0xff // the rest says which kind of busy
		return primary == sqlite3.SQLITE_BUSY || primary == sqlite3.SQLITE_LOCKED
	}
	return errors.Is(err, errLostRace)
}

// pause waits before the next try, longer each time and never as long as others that lost the same race.
func pause(ctx context.Context, try int) error {
	timer := time.NewTimer(time.Duration(try)*5*time.Millisecond + rand.N(20*time.Millisecond))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
