package api

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/evenkeel-io/evenkeel/internal/objects"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// Places of columns.
const (
	atGeneration = 4
	atRevision   = 5
	atChanged    = 7
	atSpec       = 13
	atStatus     = 14
	atRecord     = 15
	atReason     = 17
	atToNotify   = 18
	columnCount  = 21
)

func bareDocument(n int64) string { return fmt.Sprintf(`{"size":%d,"text":%q}`, n, aboutAsLarge) }

// bareCreate is what the store is sent by a create.
func (l *loaded) bareCreate(ctx context.Context, _ int) error {
	n := l.last.Add(1)
	name, at := fmt.Sprintf("c%d", n), time.Now().UnixMicro()
	return l.bareTransaction(ctx, func(tx *sql.Tx) error {
		var revision int64
		if err := tx.QueryRowContext(ctx, nextFloor, subject.Shard("widgets", name)).Scan(&revision); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, insertRow, "widgets", name, name, "null", 1, revision, at, at, nil, "null", false, "", nil,
			bareDocument(n), "{}", `{"state":"Pending"}`, false, objects.Created, revision, "", "", at, "Pending")
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, l.floor.feed.insertChange, "widgets", name, at); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, insertRequest, name, "widgets", name, name, name, "", at)
		return err
	})
}

// bareChange is what the store is sent by a write to an object that is there.
func (l *loaded) bareChange(ctx context.Context, name string, ofSpec bool) error {
	return l.bareTransaction(ctx, func(tx *sql.Tx) error {
		values, into := bareRow()
		if err := tx.QueryRowContext(ctx, selectOne, "widgets", name).Scan(into...); err != nil {
			return err
		}
		at := time.Now().UnixMicro()
		if _, err := tx.ExecContext(ctx, l.floor.feed.insertChange, "widgets", name, at); err != nil {
			return err
		}
		before, _ := values[atRevision].(int64)
		generation, _ := values[atGeneration].(int64)
		values[atRevision] = before + 1
		var owed any
		if ofSpec {
			values[atGeneration], values[atChanged], values[atSpec], owed = generation+1, at, bareDocument(l.last.Add(1)), at
			values[atReason], values[atToNotify] = objects.Changed, before+1
		} else {
			values[atStatus], values[atRecord] = bareDocument(l.last.Add(1)), `{"state":"Ready","observedGeneration":1,"fence":1}`
		}
		result, err := tx.ExecContext(ctx, updateRow, append(values[:], owed, "Ready", before, "")...)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n != 1 {
			return errors.Join(err, errLostRace)
		}
		return nil
	})
}

// bareToken is the look-up of a token. The floor has none of that id: nothing is found, as fast.
func (l *loaded) bareToken(ctx context.Context) error {
	rows, err := l.floor.read.QueryContext(ctx, selectToken, l.tokenID)
	if err != nil {
		return err
	}
	return rows.Close()
}

func (l *loaded) bareTransaction(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := l.floor.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func bareRow() (values *[columnCount]any, into []any) {
	values = new([columnCount]any)
	for i := range values {
		into = append(into, &values[i])
	}
	return values, into
}

// bareRead reads rows, as many as are wanted.
func bareRead(ctx context.Context, db *sql.DB, want int, statement string, args ...any) error {
	rows, err := db.QueryContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	_, into := bareRow()
	n := 0
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		n++
	}
	if n != want {
		return fmt.Errorf("%d rows, not %d", n, want)
	}
	return rows.Err()
}

// processorTime is what this process has used so far.
func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
