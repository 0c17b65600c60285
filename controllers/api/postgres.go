package api

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

const (
	// connections is how many a process keeps at the most: several APIs share a server, which has 100 unless told otherwise.
	connections = 16
	// idleFor is how long a connection that nobody uses is kept.
	idleFor = 5 * time.Minute
	// connectTimeout bounds one connection to the server.
	connectTimeout = 5 * time.Second
	// migrateFor is how many seconds an API waits for another one that migrates.
	migrateFor = 300
)

// openPostgres opens PostgreSQL, or CockroachDB, which speaks the same protocol.
func openPostgres(ctx context.Context, name string) (*store, error) {
	cfg, err := pgx.ParseConfig(name)
	if err != nil {
		return nil, errors.New("the URL is wrong: want postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full") // pgx's error repeats parts of it
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "evenkeel"
	}
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	db.SetConnMaxIdleTime(idleFor)
	cockroach, err := isCockroach(ctx, db)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	migrateAlone, err := migrationLock(cockroach)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	changes := postgresNumbering
	if cockroach {
		changes = cockroachNumbering
	}
	return &store{write: db, read: db, engine: engine{
		dialect: goose.DialectPostgres, migrations: migrationFiles(` COLLATE "C"`, "json_each_text", "JSON"), options: []goose.ProviderOption{migrateAlone},
		races: serializationFailure, aborted: serializationFailure, rowLock: " FOR UPDATE", keepLock: " FOR SHARE", feed: changes.statements(),
	}}, nil
}

// postgresNumbering takes the ids of transactions: they are given out in order, 64 bits wide, and the server knows which
// are still running. Another transaction that writes for long, also in another database of the server, holds watches up,
// and nothing else.
var postgresNumbering = numbering{
	next:    `CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT)`,
	settled: `SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT) - 1`,
	last:    `SELECT CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT)`,
}

// cockroachNumbering takes the time of transactions, in nanoseconds. One that commits behind somebody who has read at a
// later time is given a later one (CockroachDB, "Transaction layer": timestamp cache). Not tested: there is no server.
var cockroachNumbering = numbering{
	next:    `CAST(floor(cluster_logical_timestamp()) AS INT8)`,
	settled: `SELECT CAST(floor(cluster_logical_timestamp()) AS INT8) - 1`,
	last:    `SELECT CAST(floor(cluster_logical_timestamp()) AS INT8)`,
}

func isCockroach(ctx context.Context, db *sql.DB) (bool, error) {
	var version string
	err := db.QueryRowContext(ctx, "SELECT version()").Scan(&version)
	return strings.HasPrefix(version, "CockroachDB"), err
}

// migrationLock keeps APIs that start together from migrating at once. CockroachDB has no advisory locks.
func migrationLock(cockroach bool) (goose.ProviderOption, error) {
	if cockroach {
		l, err := lock.NewPostgresTableLocker(lock.WithTableLockTimeout(time.Second, migrateFor))
		return goose.WithLocker(l), err
	}
	l, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, migrateFor))
	return goose.WithSessionLocker(l), err
}

// migrationFiles are the migrations with what engines call differently: the collation behind each TEXT, the function that
// makes rows of the members of a JSON object, and the type that it takes. Names are compared byte by byte everywhere; a database of PostgreSQL has the
// order of some language, in which "a-b" comes after "aa".
func migrationFiles(collation, members, jsonType string) fs.FS {
	files := fstest.MapFS{}
	names, _ := fs.Glob(migrations, "migrations/*.sql") // fails only on a malformed pattern
	for _, name := range names {
		data, _ := migrations.ReadFile(name) // it is embedded
		data = bytes.ReplaceAll(data, []byte(" TEXT "), []byte(" TEXT"+collation+" "))
		data = bytes.ReplaceAll(data, []byte("json_members"), []byte(members))
		data = bytes.ReplaceAll(data, []byte("json_type"), []byte(jsonType))
		files[strings.TrimPrefix(name, "migrations/")] = &fstest.MapFile{Data: data}
	}
	return files
}

// serializationFailure recognizes transactions that the server has rolled back because of others: serialization failures and
// deadlocks (PostgreSQL, appendix A, class 40).
func serializationFailure(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "40001" || e.Code == "40P01")
}

// Redacted is the name of a store (Config.Store) without its password, to be shown.
func Redacted(name string) string {
	u, err := url.Parse(name)
	if err != nil {
		scheme, _, _ := strings.Cut(name, ":")
		return fmt.Sprintf("%s:…", scheme)
	}
	q := u.Query()
	if q.Has("password") {
		q.Set("password", "xxxxx")
		u.RawQuery = q.Encode()
	}
	return u.Redacted()
}
