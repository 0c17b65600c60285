// Package broker starts nats-servers inside the process: for the test kit, for tests, and for examples that need nothing
// but Go. It is the only place that knows how to configure one.
package broker

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// readyWithin bounds the start of a server; it takes milliseconds, with a million messages on disk a second.
const readyWithin = 30 * time.Second

// Start starts a server with JetStream on the given folder. Without listen it accepts in-process connections only, with
// listen ("127.0.0.1:4222"; port 0 chooses one) also those.
func Start(dir, listen string) (*server.Server, error) {
	opts := &server.Options{ServerName: "evenkeel", JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true, DontListen: listen == ""}
	if listen != "" {
		host, port, err := net.SplitHostPort(listen)
		if err != nil {
			return nil, fmt.Errorf("start nats-server: listen %q: %w", listen, err)
		}
		if opts.Host, opts.Port = host, server.RANDOM_PORT; port != "0" {
			if opts.Port, err = strconv.Atoi(port); err != nil {
				return nil, fmt.Errorf("start nats-server: listen %q: port: %w", listen, err)
			}
		}
	}
	return StartWith(opts)
}

// StartWith starts a server with options of one's own and waits until it is ready.
func StartWith(opts *server.Options) (*server.Server, error) {
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("start nats-server: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(readyWithin) {
		Stop(s)
		return nil, errors.New("start nats-server: not ready in time; is the port taken?")
	}
	return s, nil
}

// Stop stops a server and waits until it has.
func Stop(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// Connect makes an in-process connection that reconnects for ever.
func Connect(s *server.Server, opts ...nats.Option) (*nats.Conn, error) {
	nc, err := nats.Connect("", append([]nats.Option{nats.InProcessServer(s), nats.MaxReconnects(-1)}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to the nats-server in this process: %w", err)
	}
	return nc, nil
}
