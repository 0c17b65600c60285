package reconciler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// blip is how long a connection to NATS may be away without a word in the log: a server that restarts is back within it.
const blip = time.Second

// connected waits until there is a connection to NATS. It says after patience, and then ever more rarely, that there is none,
// and when there is one again. It fails if there will never be one.
func (r *Runner) connected(ctx context.Context, patience time.Duration) error {
	nc := r.cfg.NATS
	changed := nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer nc.RemoveStatusListener(changed)
	said, next, pause := false, time.Now().Add(patience), repeatFirst
	for {
		if nc.IsClosed() {
			return closedBecause(nc.LastError())
		}
		if nc.IsConnected() {
			if said {
				r.cfg.Logger.Info("connected to NATS", "server", nc.ConnectedAddr()) // its URL may hold a token
			}
			return nil
		}
		if now := time.Now(); !now.Before(next) {
			r.trouble("connect to NATS", r.notConnected())
			said, next, pause = true, now.Add(pause), min(2*pause, repeatMax)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(time.Until(next)):
		}
	}
}

// watchNATS says when the connection is away, and ends the run when it is closed for good.
func (r *Runner) watchNATS(ctx context.Context, end context.CancelCauseFunc) {
	nc := r.cfg.NATS
	changed := nc.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer nc.RemoveStatusListener(changed)
	for ctx.Err() == nil {
		if err := r.connected(ctx, blip); err != nil {
			end(err)
			return
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// notConnected names the servers, without passwords, and the client's last error.
func (r *Runner) notConnected() error {
	at := strings.Join(r.cfg.NATS.Servers(), ", ")
	if err := r.cfg.NATS.LastError(); err != nil {
		return fmt.Errorf("not connected to NATS at %s: %w; waiting", at, err)
	}
	return fmt.Errorf("not connected to NATS at %s; waiting", at)
}

// closedBecause says why a connection is closed for good, by its last error, and how to avoid it.
func closedBecause(err error) error {
	switch {
	case isAuth(err):
		return fmt.Errorf("reconciler: the connection to NATS is closed for good: %w: the client gives up when a server refuses its credentials twice; "+
			"connect with nats.IgnoreAuthErrorAbort() to go on trying", err)
	case err != nil:
		return fmt.Errorf("reconciler: the connection to NATS is closed for good (last error: %w): close it only when Run has returned", err)
	}
	return errors.New("reconciler: the connection to NATS was closed while Run ran: close it only when Run has returned")
}

func isAuth(err error) bool {
	for _, e := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
