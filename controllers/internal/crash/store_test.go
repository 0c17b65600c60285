package crash

import (
	"errors"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgproto3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// watchStore watches the transactions of a store. The API is to use the one that is returned, until stop.
func watchStore(p *points, store string) (watched string, stop func() error, err error) {
	if strings.HasPrefix(store, "sqlite:") {
		sqlite.RegisterConnectionHook(func(conn sqlite.ExecQuerierContext, _ string) error {
			watchSQLite(p, conn.(sqlite.HookRegisterer))
			return nil
		})
		return store, func() error { return nil }, nil
	}
	return watchPostgres(p, store)
}

// revisionColumn is the place of the revision in a row. A write of an object raises it, a mark leaves it as it is.
const revisionColumn = 5

// watchSQLite sees the rows that a transaction changes, and its commit before it happens. There is no word of the end of a
// commit; the next transaction's first row comes after it.
func watchSQLite(p *points, conn sqlite.HookRegisterer) {
	var wrote, marks, marked bool // of a connection that is used by one goroutine at a time
	conn.RegisterPreUpdateHook(func(row sqlite.SQLitePreUpdateData) {
		if marked {
			p.reach(afterMark)
		}
		marked = false
		if row.TableName != "objects" || row.Op == sqlite3.SQLITE_DELETE {
			return
		}
		after := make([]any, revisionColumn+1)
		err := row.New(after...)
		before := make([]any, revisionColumn+1)
		if row.Op == sqlite3.SQLITE_UPDATE {
			err = errors.Join(err, row.Old(before...))
		}
		if err != nil {
			panic(err)
		}
		if before[revisionColumn] == after[revisionColumn] {
			marks = true
		} else {
			wrote = true
		}
	})
	conn.RegisterCommitHook(func() int32 {
		if wrote {
			p.reach(beforeCommit)
		}
		if marks {
			p.nears(afterMark)
		}
		wrote, marks, marked = false, false, marks
		return 0
	})
	conn.RegisterRollbackHook(func() { wrote, marks = false, false })
}

// watchPostgres puts a relay between the API and the server, which understands what they say.
func watchPostgres(p *points, store string) (watched string, stop func() error, err error) {
	u, err := url.Parse(store)
	if err != nil {
		return "", nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	host := u.Host
	u.Host = l.Addr().String()
	var relaying sync.WaitGroup
	relaying.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			relaying.Go(func() { relayPostgres(p, conn, host) })
		}
	})
	return u.String(), func() error {
		err := l.Close()
		relaying.Wait() // the API has closed its connections
		return err
	}, nil
}

// pgRelay is one connection to the server.
type pgRelay struct {
	points *points
	api    *pgproto3.Backend  // its end towards the API
	server *pgproto3.Frontend // its end towards the server
	// marking is whether the server's next word of a commit is that of a mark.
	marking atomic.Bool
}

// relayPostgres relays one connection until either end closes it.
func relayPostgres(p *points, conn net.Conn, host string) {
	defer conn.Close()
	up, err := net.Dial("tcp", host)
	if err != nil {
		return
	}
	defer up.Close()
	r := &pgRelay{points: p, api: pgproto3.NewBackend(conn, conn), server: pgproto3.NewFrontend(up, up)}
	hello, err := r.api.ReceiveStartupMessage()
	if err != nil {
		return
	}
	r.server.Send(hello)
	if r.server.Flush() != nil {
		return
	}
	var answering sync.WaitGroup
	answering.Go(func() {
		r.answers()
		conn.Close()
	})
	r.requests()
	up.Close()
	answering.Wait()
}

// requests relays what the API says. Each transaction is known by its statements, which are prepared once.
func (r *pgRelay) requests() {
	texts := map[string]string{}
	var wrote, marks bool
	for {
		m, err := r.api.Receive()
		if err != nil {
			return
		}
		switch m := m.(type) {
		case *pgproto3.Parse:
			texts[m.Name] = m.Query
		case *pgproto3.Bind:
			text := texts[m.PreparedStatement]
			marks = marks || strings.Contains(text, "UPDATE objects SET notified_revision")
			wrote = wrote || strings.Contains(text, "UPDATE objects SET labels") || strings.Contains(text, "INSERT INTO objects")
		case *pgproto3.Query:
			if wrote && m.String == "commit" {
				r.points.reach(beforeCommit)
			}
			if marks && m.String == "commit" {
				r.points.nears(afterMark)
				r.marking.Store(true)
			}
			wrote, marks = false, false
		}
		r.server.Send(m)
		if r.server.Flush() != nil {
			return
		}
	}
}

// answers relays what the server says.
func (r *pgRelay) answers() {
	for {
		m, err := r.server.Receive()
		if err != nil {
			return
		}
		if done, ok := m.(*pgproto3.CommandComplete); ok && string(done.CommandTag) == "COMMIT" && r.marking.Swap(false) {
			r.points.reach(afterMark)
		}
		r.api.Send(m)
		if r.api.Flush() != nil {
			return
		}
	}
}
