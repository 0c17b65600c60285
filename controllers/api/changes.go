package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// Every write leaves a row in changes, in its transaction. Its number has to be one behind which nothing appears any more
// once somebody has read up to it. A plain sequence is not: a transaction that drew 5 may commit after the one that drew
// 6. So engines number in their own way, and say up to where all is settled (engine.changeID, engine.settled).

// place is a position among the changes: behind that of this number, kind and name.
type place struct {
	change     int64
	kind, name string
}

// behindAll of a number's kinds: labels are lower case.
const behindAll = "~"

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.change, q.change), cmp.Compare(p.kind, q.kind), cmp.Compare(p.name, q.name))
}

// isTrimmed reports whether changes behind a place have gone.
func (p place) isTrimmed(upTo int64) bool {
	return upTo > 0 && p.compare(place{change: upTo, kind: behindAll}) < 0
}

// errTrimmed: not all changes behind a place are there any more.
var errTrimmed = errors.New("what has changed since is not known any more")

// change is a row of changes.
type change struct{ place }

func (c change) key() objects.Key { return objects.Key{Kind: c.kind, Name: c.name} }

// cursor says from where a watch goes on: behind a place, or, while it was being shown everything, behind a name of that.
type cursor struct {
	epoch string
	place place
	// showing, if the watch had come to the name shownTo of all there is, place being from where it goes on afterwards.
	showing bool
	shownTo string
}

// String is a cursor as the id of an event. Epochs, kinds and names have no dots.
func (c cursor) String() string {
	if c.showing {
		return fmt.Sprintf("%s.%d.%s.%s", c.epoch, c.place.change, showingAll, c.shownTo)
	}
	return fmt.Sprintf("%s.%d.%s.%s", c.epoch, c.place.change, c.place.kind, c.place.name)
}

// showingAll stands in a cursor where others have a kind. No kind is called so.
const showingAll = "+"

// parseWatchCursor reads the id of an event.
func parseWatchCursor(text string) (c cursor, err error) {
	parts := strings.Split(text, ".")
	var change int64
	if len(parts) == 4 {
		change, err = strconv.ParseInt(parts[1], 10, 64)
	}
	if len(parts) != 4 || err != nil || change < 0 || !utf8.ValidString(text) || strings.Contains(text, "\x00") {
		return c, objects.Invalid("query.cursor", "want the id of an event of an earlier watch")
	}
	c = cursor{epoch: parts[0], place: place{change: change, kind: parts[2], name: parts[3]}}
	if parts[2] == showingAll {
		c = cursor{epoch: parts[0], place: place{change: change, kind: behindAll}, showing: true, shownTo: parts[3]}
	}
	return c, nil
}

const (
	insertFeed = `INSERT INTO feed (id, epoch, trimmed) VALUES (1, $1, 0) ON CONFLICT (id) DO NOTHING`
	// newEpoch begins one if there are numbers that this server has not reached: it is not the one that gave them out.
	newEpoch      = `UPDATE feed SET epoch = $1, trimmed = 0 WHERE id = 1`
	setTrimmed    = `UPDATE feed SET trimmed = $1 WHERE id = 1 AND trimmed < $1`
	deleteChanges = `DELETE FROM changes WHERE change <= $1`
)

// numbering is how an engine numbers changes, as expressions.
type numbering struct {
	// next is the number of a change that is being written.
	next string
	// settled is a number behind which, and behind all lower ones, nothing appears any more.
	settled string
	// last is a number that is not lower than any that has been given out.
	last string
}

// feedStatements are made of a numbering.
type feedStatements struct{ insertChange, selectChanges, selectOldest, selectFeed, selectForeign string }

func (n numbering) statements() feedStatements {
	return feedStatements{
		insertChange: `INSERT INTO changes (change, kind, name, written_at) VALUES (` + n.next + `, $1, $2, $3)
			ON CONFLICT (change, kind, name) DO NOTHING`,
		// It reads up to what is settled, in the same snapshot, and says what has been trimmed.
		selectChanges: `SELECT change, kind, name, (SELECT trimmed FROM feed WHERE id = 1) FROM changes
			WHERE (change, kind, name) > ($1, $2, $3) AND change <= (` + n.settled + `) ORDER BY change, kind, name LIMIT $4`,
		selectOldest: `SELECT change, written_at FROM changes
			WHERE change < (SELECT MAX(change) FROM changes) AND change <= (` + n.settled + `) ORDER BY change LIMIT $1`,
		selectFeed:    `SELECT epoch, trimmed, (` + n.settled + `) FROM feed WHERE id = 1`,
		selectForeign: `SELECT COUNT(*) FROM changes WHERE change > (` + n.last + `)`,
	}
}

// saveChange leaves word of a write.
func saveChange(ctx context.Context, tx *transaction, o *apiclient.Raw) error {
	if _, err := tx.ExecContext(ctx, tx.feed.insertChange, o.Kind, o.Name, objects.Now().UnixMicro()); err != nil {
		return fmt.Errorf("note the change of %s: %w", objects.KeyOf(o), err)
	}
	return nil
}

// changesAfter reads up to limit changes behind a place. It fails with errTrimmed if some of them have gone.
func (s *store) changesAfter(ctx context.Context, after place, limit int) ([]change, error) {
	rows, err := s.read.QueryContext(ctx, s.feed.selectChanges, after.change, after.kind, after.name, limit)
	if err != nil {
		return nil, fmt.Errorf("read changes: %w", err)
	}
	defer rows.Close()
	var page []change
	for rows.Next() {
		var c change
		var trimmed int64
		if err := rows.Scan(&c.change, &c.kind, &c.name, &trimmed); err != nil {
			return nil, fmt.Errorf("read changes: %w", err)
		}
		if after.isTrimmed(trimmed) {
			return nil, errTrimmed
		}
		page = append(page, c)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read changes: %w", err)
	}
	return page, nil
}

// feedState is what is known of the changes as a whole.
type feedState struct {
	epoch string
	// trimmed and settled: changes behind the one and up to the other are there and complete.
	trimmed, settled int64
}

func (s *store) feedState(ctx context.Context) (f feedState, err error) {
	if err := s.read.QueryRowContext(ctx, s.feed.selectFeed).Scan(&f.epoch, &f.trimmed, &f.settled); err != nil {
		return f, fmt.Errorf("read the state of the feed: %w", err)
	}
	return f, nil
}

// openFeed begins an epoch where there is none, or where the numbers of changes are those of another server: a database
// that was dumped and restored has the rows, but not the count.
func (s *store) openFeed(ctx context.Context) error {
	return s.transact(ctx, func(tx *transaction) error {
		epoch := rand.Text()
		if _, err := tx.ExecContext(ctx, insertFeed, epoch); err != nil {
			return fmt.Errorf("open the feed: %w", err)
		}
		var foreign int
		if err := tx.QueryRowContext(ctx, s.feed.selectForeign).Scan(&foreign); err != nil || foreign == 0 {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM changes`); err != nil {
			return fmt.Errorf("open the feed: %w", err)
		}
		_, err := tx.ExecContext(ctx, newEpoch, epoch)
		return err
	})
}

// trim drops changes from before a time, a page of them; more says that there may be others. The last one stays: its
// number is what SQLite counts on from.
func (s *store) trim(ctx context.Context, before time.Time) (more bool, err error) {
	rows, err := s.read.QueryContext(ctx, s.feed.selectOldest, trimPage)
	if err != nil {
		return false, fmt.Errorf("trim changes: %w", err)
	}
	defer rows.Close()
	var upTo int64
	n := 0
	for rows.Next() {
		var number, writtenAt int64
		if err := rows.Scan(&number, &writtenAt); err != nil {
			return false, fmt.Errorf("trim changes: %w", err)
		}
		if writtenAt >= before.UnixMicro() {
			break
		}
		upTo, n = number, n+1
	}
	if err := rows.Close(); err != nil || n == 0 {
		return false, err
	}
	err = s.transact(ctx, func(tx *transaction) error {
		if _, err := tx.ExecContext(ctx, setTrimmed, upTo); err != nil {
			return fmt.Errorf("trim changes: %w", err)
		}
		_, err := tx.ExecContext(ctx, deleteChanges, upTo)
		return err
	})
	return err == nil && n == trimPage, err
}

// trimPage is how many changes one transaction drops: as many as hold nobody up for long.
const trimPage = 2000
