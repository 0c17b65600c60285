package e2e

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// TestRightToOneKindsLocksDoesNotReachTheBucket: who may lock objects of one kind cannot empty the bucket with a roll-up,
// whether the bucket is new or was made by an older release.
func TestRightToOneKindsLocksDoesNotReachTheBucket(t *testing.T) {
	publish, subscribe := reconciler.Permissions("evenkeel", "", false, "jobs")
	for name, older := range map[string]bool{"new bucket": false, "older bucket": true} {
		t.Run(name, func(t *testing.T) {
			forgetTimers()
			defer forgetTimers()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				s, err := broker.StartWith(&server.Options{
					DontListen: true, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true,
					Users: []*server.User{{Username: "admin", Password: "a"}, {Username: "controller", Password: "c", Permissions: &server.Permissions{
						Publish:   &server.SubjectPermission{Allow: publish},
						Subscribe: &server.SubjectPermission{Allow: subscribe},
					}}},
				})
				require.NoError(t, err)
				defer broker.Stop(s)
				admin, err := broker.Connect(s, nats.UserInfo("admin", "a"))
				require.NoError(t, err)
				defer admin.Close()
				js, err := jetstream.New(admin)
				require.NoError(t, err)
				if older {
					_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
						Name: "KV_evenkeel_locks", Subjects: []string{"$KV.evenkeel_locks.>"}, Storage: jetstream.MemoryStorage,
						MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, AllowRollup: true, DenyDelete: true, AllowDirect: true, AllowMsgTTL: true,
					})
					require.NoError(t, err)
				}
				require.NoError(t, lock.Ensure(t.Context(), js, "evenkeel_locks", 1, jetstream.MemoryStorage))
				_, err = admin.Request("$KV.evenkeel_locks.lock.others.1.x", []byte(`{"session":"s"}`), time.Second)
				require.NoError(t, err)
				nc, err := broker.Connect(s, nats.UserInfo("controller", "c"))
				require.NoError(t, err)
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
