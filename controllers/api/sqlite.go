package api

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

const (
	// busyTimeout is how long a statement waits for another process's transaction; maxTries of it stay near the client's
	// timeout of 10 s. Within the process writers wait in line, so more than one try means another process.
	busyTimeout = 2 * time.Second
	// readers is the number of connections that read a file. SQLite reads do not wait for the writer.
	readers = 4
)

func openSQLite(path string) (*store, error) {
	write, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, err
	}
	write.SetMaxOpenConns(1) // SQLite has one writer at a time, and a queue here is fairer than its lock
	s := &store{write: write, read: write, engine: engine{
		dialect: goose.DialectSQLite3, migrations: migrationFiles("", "json_each", "TEXT"), races: sqliteBusy,
		aborted: func(error) bool { return false }, feed: sqliteNumbering.statements(),
	}}
	if path == ":memory:" {
		return s, nil // each connection would be a database of its own
	}
	if s.read, err = sql.Open("sqlite", dsn(path)+"&_pragma=query_only(1)"); err != nil {
		return nil, errors.Join(err, write.Close())
	}
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	return s, nil
}

// sqliteNumbering counts: there is one writer at a time, and what it has not committed nobody sees.
var sqliteNumbering = numbering{
	next:    `(SELECT COALESCE(MAX(change), 0) + 1 FROM changes)`,
	settled: `SELECT COALESCE(MAX(change), 0) FROM changes`,
	last:    `SELECT COALESCE(MAX(change), 0) FROM changes`,
}

// dsn is the SQLite URI of a path. Transactions begin with the write lock: one that reads first and then has to wait for
// the lock would be refused, because what it has read may be outdated (SQLITE_BUSY_SNAPSHOT).
func dsn(path string) string {
	escape := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23")
	return fmt.Sprintf("file:%s?_txlock=immediate&_pragma=busy_timeout(%d)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)",
		escape.Replace(path), busyTimeout.Milliseconds())
}

func sqliteBusy(err error) bool {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return false
	}
	primary := e.Code() & 0xff // the rest says which kind of busy
	return primary == sqlite3.SQLITE_BUSY || primary == sqlite3.SQLITE_LOCKED
}
