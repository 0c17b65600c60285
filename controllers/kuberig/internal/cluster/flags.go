package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// ports are those of the cluster, all on 127.0.0.1.
type ports struct{ etcd, peers, api int }

// Ports are taken from this range, which systems do not give out by themselves: the API server takes no listener and refuses
// port 0, so there is a time in which nobody holds its port, at the start and after it was killed.
const firstPort, lastPort = 20000, 32000

// freePorts finds ports that nobody listens on. If one is taken all the same, its component dies and says so.
func freePorts() (p ports, err error) {
	wanted := []*int{&p.etcd, &p.peers, &p.api}
	for range 1000 {
		if len(wanted) == 0 {
			return p, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort)
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return p, err
		}
		if port != p.etcd && port != p.peers {
			*wanted[0], wanted = port, wanted[1:]
		}
	}
	return p, fmt.Errorf("no port between %d and %d on 127.0.0.1 is free", firstPort, lastPort)
}

// flags are those of a component.
func (c *cluster) flags(name string) []string {
	switch name {
	case Etcd:
		return c.etcdFlags()
	case APIServer:
		return c.apiFlags()
	case ControllerManager:
		return []string{
			"--kubeconfig=" + c.path(ControllerManager+".kubeconfig"),
			"--secure-port=0", "--leader-elect=false",
			"--use-service-account-credentials=true",
			"--service-account-private-key-file=" + c.path(accountKey),
			"--root-ca-file=" + c.path(caCert),
			"--controllers=*,-node-ipam-controller,-node-route-controller,-cloud-node-lifecycle-controller",
			"--kube-api-qps=200", "--kube-api-burst=400",
		}
	case Scheduler:
		return []string{
			"--kubeconfig=" + c.path(Scheduler+".kubeconfig"),
			"--secure-port=0", "--leader-elect=false",
		}
	default:
		return []string{
			"--kubeconfig=" + c.path(Kwok+".kubeconfig"),
			"--config=" + c.path("kwok.yaml"),
			"--manage-all-nodes=true", "--node-lease-duration-seconds=40",
			"--cidr=10.244.0.1/16", "--node-ip=127.0.0.1", "--node-port=0",
		}
	}
}

func (c *cluster) etcdFlags() []string {
	clients := fmt.Sprintf("https://127.0.0.1:%d", c.ports.etcd)
	peers := fmt.Sprintf("https://127.0.0.1:%d", c.ports.peers)
	return []string{
		"--name=evenkeel", "--data-dir=" + c.path("etcd"),
		"--listen-client-urls=" + clients, "--advertise-client-urls=" + clients,
		"--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers, "--initial-cluster=evenkeel=" + peers,
		// Whoever can write to etcd owns the cluster, and other people may be on this machine.
		"--client-cert-auth", "--trusted-ca-file=" + c.path(caCert),
		"--cert-file=" + c.path(etcdCert), "--key-file=" + c.path(etcdKey),
		"--peer-client-cert-auth", "--peer-trusted-ca-file=" + c.path(caCert),
		"--peer-cert-file=" + c.path(etcdCert), "--peer-key-file=" + c.path(etcdKey),
		"--unsafe-no-fsync=true", // being killed spoils nothing; a crash of the machine may, and who would continue then?
	}
}

func (c *cluster) apiFlags() []string {
	return []string{
		fmt.Sprintf("--etcd-servers=https://127.0.0.1:%d", c.ports.etcd),
		"--etcd-cafile=" + c.path(caCert), "--etcd-certfile=" + c.path(etcdCert), "--etcd-keyfile=" + c.path(etcdKey),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.api),
		"--endpoint-reconciler-type=none", // 127.0.0.1 is no address that pods could be told
		"--service-cluster-ip-range=" + serviceRange,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--client-ca-file=" + c.path(caCert),
		"--tls-cert-file=" + c.path(apiCert), "--tls-private-key-file=" + c.path(apiKey),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.path(accountKey),
		"--service-account-signing-key-file=" + c.path(accountKey),
	}
}
