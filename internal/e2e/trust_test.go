package e2e

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// TestRightsToOneKindReachTheOthers holds the documents of Permissions to what the server does. If it fails, the server has become
// stricter, and they may say so.
func TestRightsToOneKindReachTheOthers(t *testing.T) {
	publish, subscribe := reconciler.Permissions("evenkeel", "_INBOX_c", false, "tools")
	withServer(t, may(publish, subscribe), func(t *testing.T, s *server.Server, admin *nats.Conn, js jetstream.JetStream) {
		require.NoError(t, notify.Streams(t.Context(), admin, notify.Config{Storage: jetstream.MemoryStorage}, "jobs", "tools"))
		require.NoError(t, lock.Ensure(t.Context(), js, "evenkeel_locks", 1, jetstream.MemoryStorage))
		work, err := js.Stream(t.Context(), "evenkeel_work")
		require.NoError(t, err)
		locks, err := js.Stream(t.Context(), "KV_evenkeel_locks")
		require.NoError(t, err)
		has := func(s jetstream.Stream, subj string) bool {
			_, err := s.GetLastMsgForSubject(t.Context(), subj)
			return err == nil
		}
		tools := asUser(t, s, nats.CustomInboxPrefix("_INBOX_c"))
		defer tools.Close()
		send := func(nc *nats.Conn, subj string, header ...string) {
			t.Helper()
			m := nats.NewMsg(subj)
			for i := 0; i < len(header); i += 2 {
				m.Header.Set(header[i], header[i+1])
			}
			answer, err := nc.RequestMsg(m, time.Second)
			require.NoError(t, err)
			require.NotContains(t, string(answer.Data), "error")
		}
		n := subject.Names{Prefix: "evenkeel"}
		mine, theirs := n.Fresh("tools", "x"), n.Fresh("jobs", "x")
		require.Error(t, func() error { _, err := tools.Request(theirs, nil, time.Second); return err }(), "the right itself is not there")

		soon, later := time.Now().Add(time.Second).UTC().Format(time.RFC3339), time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		send(tools, n.Schedule("tools", "x"), "Nats-Schedule", "@at "+soon, "Nats-Schedule-Target", theirs)
		advance(3 * time.Second)
		require.True(t, has(work, theirs), "a schedule is published to any subject of the stream")

		send(admin, n.Schedule("jobs", "x"), "Nats-Schedule", "@at "+later, "Nats-Schedule-Target", n.Later("jobs", "x"))
		require.True(t, has(work, n.Schedule("jobs", "x")))
		send(tools, mine, "Nats-Schedule-Next", "purge", "Nats-Scheduler", n.Schedule("jobs", "x"))
		require.False(t, has(work, n.Schedule("jobs", "x")), "schedules of other kinds can be cancelled")

		send(tools, mine, "Nats-Rollup", "all")
		require.False(t, has(work, theirs), "the stream can be emptied")

		theirLock := "$KV.evenkeel_locks.lock." + subject.LockKey("jobs", "x")
		send(admin, theirLock)
		require.True(t, has(locks, theirLock))
		m := nats.NewMsg("$KV.evenkeel_locks.lock." + subject.LockKey("tools", "x"))
		m.Header.Set("Nats-Rollup", "all")
		answer, err := tools.RequestMsg(m, time.Second)
		require.NoError(t, err)
		require.Contains(t, string(answer.Data), "rollup not permitted")
		require.True(t, has(locks, theirLock), "the locks of other kinds are out of reach")
	})
}
