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

	"github.com/evenkeel-io/evenkeel/controllers/secrets"
)

// maxTries bounds how often a transaction is begun anew after it lost a race.
const maxTries = 5

//go:embed migrations/*.sql
var migrations embed.FS

var (
	// errLostRace: another writer was there between reading a row and writing it; begin anew.
	errLostRace = errors.New("another write came first")
	errNewer    = errors.New("the schema is newer than this program")
)

// store is the database. Statements are in the SQL that SQLite, PostgreSQL and CockroachDB have in common.
type store struct {
	engine
	write *sql.DB
	read  *sql.DB // the same database; with SQLite unable to write
	vault *vault
	kinds *kinds
}

// engine is what databases differ in.
type engine struct {
	dialect    goose.Dialect
	migrations fs.FS
	options    []goose.ProviderOption
	// races reports whether an error of the database says that a transaction lost a race and was rolled back. aborted is
	// the same of an error of the commit, where it must be certain.
	races, aborted func(error) bool
	// rowLock ends a SELECT of one row that is to stay as it is until the end of the transaction. Empty where nobody else
	// writes during a transaction.
	rowLock string
	feed    feedStatements
}

// transaction is one try at a transaction.
type transaction struct {
	*sql.Tx
	feed  *feedStatements
	vault *vault
	// rowLock ends a SELECT of a row that is going to be written. It is empty at the first try: most rows have one writer, and
	// a lock costs a write. Whoever has lost a race waits in line: among many writers of one row, one could lose every race.
	rowLock string
}

// openStore opens a database and brings its schema up to date. keys may be nil. Errors name it without its password.
func openStore(ctx context.Context, name string, keys *secrets.Keyring) (s *store, err error) {
	scheme, rest, _ := strings.Cut(name, ":")
	shown := name
	switch {
	case scheme == "sqlite" && rest != "":
		s, err = openSQLite(rest)
	case scheme == "postgres" || scheme == "postgresql":
		shown = Redacted(name)
		s, err = openPostgres(ctx, name)
	default:
		return nil, fmt.Errorf(`Config.Store %q: want "sqlite:PATH", "sqlite::memory:" or "postgres://…"`, Redacted(name))
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", shown, err)
	}
	s.vault = &vault{keys: keys}
	s.kinds = &kinds{store: s}
	s.vault.refresh = s.kinds.refresh
	if err := s.migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("migrate %s: %w", shown, err), s.close())
	}
	if err := s.openFeed(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", shown, err), s.close())
	}
	return s, nil
}

// migrate brings the schema up to date. APIs that start together race for it; where the engine has no lock for that, whoever
// loses finds the work done when it looks again.
func (s *store) migrate(ctx context.Context) error {
	for try := 1; ; try++ {
		err := s.migrateOnce(ctx)
		if err == nil || try == maxTries || errors.Is(err, errNewer) {
			return err
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

func (s *store) migrateOnce(ctx context.Context) error {
	options := append([]goose.ProviderOption{goose.WithDisableGlobalRegistry(true)}, s.options...)
	p, err := goose.NewProvider(s.dialect, s.write, s.migrations, options...)
	if err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		return err
	}
	current, target, err := p.GetVersions(ctx)
	if err == nil && current > target {
		err = fmt.Errorf("%w: it is at version %d, and this program knows %d; run a newer program, or restore a backup", errNewer, current, target)
	}
	return err
}

func (s *store) close() error {
	var err error
	if s.read != s.write {
		err = s.read.Close()
	}
	return errors.Join(err, s.write.Close())
}

// transact runs do in a transaction that is committed unless do fails. When it loses a race it begins anew, a few times,
// so do may be called more than once. It does not after a failed commit that may have taken effect.
func (s *store) transact(ctx context.Context, do func(tx *transaction) error) error {
	for try := 1; ; try++ {
		lost, err := s.transactOnce(ctx, try, do)
		if !lost || try == maxTries {
			return err
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

func (s *store) transactOnce(ctx context.Context, try int, do func(tx *transaction) error) (lost bool, err error) {
	tx := &transaction{feed: &s.feed, vault: s.vault}
	tx.Tx, err = s.write.BeginTx(ctx, nil)
	if err != nil {
		return s.lostRace(err), err
	}
	if try > 1 {
		tx.rowLock = s.rowLock
	}
	if err := do(tx); err != nil {
		tx.Rollback() // the error that matters is do's
		return s.lostRace(err), err
	}
	err = tx.Commit()
	return err != nil && s.aborted(err), err
}

func (s *store) lostRace(err error) bool { return errors.Is(err, errLostRace) || s.races(err) }

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
