package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	// readyWithin bounds each step of the start. All of them together take seconds; a busy machine may need longer.
	readyWithin = 2 * time.Minute
	// pollEvery is how often a step looks whether it is done.
	pollEvery = 50 * time.Millisecond
)

// admin asks the API with an administrator's rights.
type admin struct {
	http http.Client
	url  string
}

func newAdmin(k *keys, port int) (*admin, error) {
	own := k.clients["admin"]
	cert, err := tls.X509KeyPair(own.cert, own.key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(k.ca)
	trust := &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots, MinVersion: tls.VersionTLS12}
	return &admin{
		http: http.Client{Transport: &http.Transport{TLSClientConfig: trust}, Timeout: 10 * time.Second},
		url:  fmt.Sprintf("https://127.0.0.1:%d", port),
	}, nil
}

// call sends a request and decodes the answer into out, unless that is nil. It returns the status, and an error if the
// status is none of success.
func (a *admin) call(ctx context.Context, method, path string, in, out any) (status int, err error) {
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return 0, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, a.url+path, &body)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := a.http.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	if response.StatusCode >= 300 {
		return response.StatusCode, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	if out != nil {
		err = json.Unmarshal(text, out)
	}
	return response.StatusCode, err
}

// within calls a function until it succeeds.
func (c *cluster) within(ctx context.Context, what string, try func(context.Context) error) error {
	expired := time.NewTimer(readyWithin)
	defer expired.Stop()
	again := time.NewTicker(pollEvery)
	defer again.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-expired.C:
			return fmt.Errorf("%s is not ready within %s: %w; the logs are in %s", what, readyWithin, err, c.path("logs"))
		case <-again.C:
		}
	}
}

func (c *cluster) etcdListens(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", c.ports.etcd))
	if err != nil {
		return err
	}
	return conn.Close()
}

func (c *cluster) apiReady(ctx context.Context) error {
	_, err := c.admin.call(ctx, http.MethodGet, "/readyz?verbose", nil, nil)
	return err
}

// object is what is looked at of objects of the API.
type object struct {
	APIVersion string   `json:"apiVersion,omitempty"`
	Kind       string   `json:"kind,omitempty"`
	Metadata   metadata `json:"metadata"`
	Status     struct {
		Conditions  []condition       `json:"conditions,omitempty"`
		Capacity    map[string]string `json:"capacity,omitempty"`
		Allocatable map[string]string `json:"allocatable,omitempty"`
	} `json:"status"`
}

type metadata struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

// nodesReady registers the nodes, as their kubelets would do, and waits until kwok has made them ready.
func (c *cluster) nodesReady(ctx context.Context) error {
	for i := range c.Nodes {
		name := fmt.Sprintf("node-%d", i+1)
		err := c.within(ctx, name, func(ctx context.Context) error { return c.register(ctx, name) })
		if err != nil {
			return err
		}
	}
	return c.within(ctx, "a node", func(ctx context.Context) error {
		var nodes struct{ Items []object }
		if _, err := c.admin.call(ctx, http.MethodGet, "/api/v1/nodes", nil, &nodes); err != nil {
			return err
		}
		for _, n := range nodes.Items {
			if !n.ready() {
				return fmt.Errorf("%s is %+v", n.Metadata.Name, n.Status.Conditions)
			}
		}
		return nil
	})
}

func (c *cluster) register(ctx context.Context, name string) error {
	node := object{APIVersion: "v1", Kind: "Node", Metadata: metadata{
		Name:        name,
		Labels:      map[string]string{"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
		Annotations: map[string]string{"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
	}}
	// As much as kwok gives by itself, and disks, which pods may ask for as well.
	node.Status.Capacity = map[string]string{"cpu": "1k", "memory": "1Ti", "pods": "1M", "ephemeral-storage": "1Pi"}
	node.Status.Allocatable = node.Status.Capacity
	status, err := c.admin.call(ctx, http.MethodPost, "/api/v1/nodes", node, nil)
	if status == http.StatusConflict {
		return nil // an earlier attempt got there after all
	}
	return err
}

func (o *object) ready() bool {
	for _, c := range o.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// accountExists waits for the account that pods of the namespace default run as: without it none can be created.
func (c *cluster) accountExists(ctx context.Context) error {
	return c.within(ctx, "the default service account", func(ctx context.Context) error {
		_, err := c.admin.call(ctx, http.MethodGet, "/api/v1/namespaces/default/serviceaccounts/default", nil, nil)
		if err == nil {
			return nil
		}
		return errors.Join(errors.New("the controller manager has not made it yet"), err)
	})
}
