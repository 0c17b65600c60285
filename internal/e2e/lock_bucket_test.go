package e2e

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// TestRightToOneKindsLocksDoesNotReachTheBucket: who may lock objects of one kind cannot empty the bucket with a roll-up,
// whether the bucket is new or was made by an older release.
func TestRightToOneKindsLocksDoesNotReachTheBucket(t *testing.T) {
	publish, subscribe := reconciler.Permissions("evenkeel", "", false, "jobs")
	for name, older := range map[string]bool{"new bucket": false, "older bucket": true} {
		t.Run(name, func(t *testing.T) {
			withServer(t, may(publish, subscribe), func(t *testing.T, s *server.Server, admin *nats.Conn, js jetstream.JetStream) {
				if older {
					_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
						Name: "KV_evenkeel_locks", Subjects: []string{"$KV.evenkeel_locks.>"}, Storage: jetstream.MemoryStorage,
						MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, AllowRollup: true, DenyDelete: true, AllowDirect: true, AllowMsgTTL: true,
					})
					require.NoError(t, err)
				}
				require.NoError(t, lock.Ensure(t.Context(), js, "evenkeel_locks", 1, jetstream.MemoryStorage))
				_, err := admin.Request("$KV.evenkeel_locks.lock.others.1.x", []byte(`{"session":"s"}`), time.Second)
				require.NoError(t, err)
				nc := asUser(t, s)
				defer nc.Close()
				for _, to := range []string{"all", "sub"} {
					m := nats.NewMsg("$KV.evenkeel_locks.lock.jobs.1.x")
					m.Header.Set("Nats-Rollup", to)
					answer, err := nc.RequestMsg(m, time.Second)
					require.NoError(t, err)
					require.Contains(t, string(answer.Data), "rollup not permitted")
				}
				st, err := js.Stream(t.Context(), "KV_evenkeel_locks")
				require.NoError(t, err)
				require.EqualValues(t, 1, st.CachedInfo().State.Msgs)
			})
		})
	}
}
