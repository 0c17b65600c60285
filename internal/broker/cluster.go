package broker

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"
)

// NodeOptions are those of the node at an index of a cluster on the loopback interface, on its own folder below dir. The first
// half of ports are for the routes between the nodes, the second for clients.
func NodeOptions(dir string, ports []int, index int) *server.Options {
	size := len(ports) / 2
	var routes []*url.URL
	for _, p := range ports[:size] {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", p)})
	}
	name := fmt.Sprintf("node%d", index)
	return &server.Options{
		ServerName: name, JetStream: true, StoreDir: filepath.Join(dir, name),
		NoSigs: true, NoLog: true, Host: "127.0.0.1", Port: ports[size+index], Routes: routes,
		Cluster: server.ClusterOpts{Name: "evenkeel", Host: "127.0.0.1", Port: ports[index]},
	}
}

// StartCluster starts so many servers in this process, joined over loopback routes, each on its own folder below dir and
// each accepting clients on a loopback port.
func StartCluster(dir string, size int) ([]*server.Server, error) {
	ports, err := FreePorts(2 * size)
	if err != nil {
		return nil, err
	}
	var servers []*server.Server
	for i := range size {
		s, err := server.NewServer(NodeOptions(dir, ports, i))
		if err != nil {
			StopAll(servers)
			return nil, fmt.Errorf("start node %d: %w", i, err)
		}
		s.Start()
		servers = append(servers, s)
	}
	for i, s := range servers {
		if !s.ReadyForConnections(readyWithin) {
			StopAll(servers)
			return nil, fmt.Errorf("start node %d: not ready in time", i)
		}
	}
	return servers, nil
}

// StopAll stops servers and waits until they have.
func StopAll(servers []*server.Server) {
	for _, s := range servers {
		Stop(s)
	}
}

// FreePorts finds loopback ports that are free now. Somebody else may take one before it is used; the start fails then.
func FreePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
