package e2e

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/internal/broker/bubble"
)

// withServer runs f in virtual time with a server and a connection that may do everything there. If user is not nil, the
// server has a second user with these rights, for asUser.
func withServer(t *testing.T, user *server.Permissions, f func(t *testing.T, s *server.Server, nc *nats.Conn, js jetstream.JetStream)) {
	t.Helper()
	dir := t.TempDir()
	bubble.Run(t, func(t *testing.T) {
		s, err := broker.StartWith(withUsers(dir, user))
		require.NoError(t, err)
		defer broker.Stop(s)
		var opts []nats.Option
		if user != nil {
			opts = append(opts, nats.UserInfo("admin", "a"))
		}
		nc, err := broker.Connect(s, opts...)
		require.NoError(t, err)
		defer nc.Close()
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		f(t, s, nc, js)
	})
}

// withUsers are the options of a server that anybody may use or, if user is not nil, an administrator and a user with these
// rights.
func withUsers(dir string, user *server.Permissions) *server.Options {
	opts := &server.Options{ServerName: "evenkeel", DontListen: true, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true}
	if user != nil {
		opts.Users = []*server.User{{Username: "admin", Password: "a"}, {Username: "user", Password: "u", Permissions: user}}
	}
	return opts
}

// asUser connects the user of withServer. What it is refused is not printed.
func asUser(t *testing.T, s *server.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	quiet := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	nc, err := broker.Connect(s, append([]nats.Option{nats.UserInfo("user", "u"), quiet}, opts...)...)
	require.NoError(t, err)
	return nc
}

// may are the rights to publish and to subscribe to some subjects and no others. Without subjects to subscribe to, to all.
func may(publish, subscribe []string) *server.Permissions {
	p := &server.Permissions{Publish: &server.SubjectPermission{Allow: publish}}
	if subscribe != nil {
		p.Subscribe = &server.SubjectPermission{Allow: subscribe}
	}
	return p
}
