package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Files of the folder.
const (
	caCert     = "ca.crt"
	apiCert    = "kube-apiserver.crt"
	apiKey     = "kube-apiserver.key" //nolint:gosec // a file, not a key
	etcdCert   = "etcd.crt"
	etcdKey    = "etcd.key"
	accountKey = "service-accounts.key"
)

const (
	// serviceRange is where the addresses of Services come from; the API is the first of them.
	serviceRange   = "10.0.0.0/16"
	serviceAddress = "10.0.0.1"

	validity = 365 * 24 * time.Hour
)

// pair is a certificate and its key, in PEM.
type pair struct{ cert, key []byte }

// keys are what clients of the cluster need.
type keys struct {
	ca      []byte          // certificate of the authority, in PEM
	clients map[string]pair // by name: admin and the components
}

// clientGroups are the names that clients have, and their groups. kwok acts as every node and as every kubelet.
var clientGroups = map[string][]string{
	"admin":           {"system:masters"},
	ControllerManager: nil,
	Scheduler:         nil,
	Kwok:              {"system:masters"},
}

// writeKeys makes an authority and everything that it signs. The authority's own key is forgotten.
func writeKeys(folder string) (*keys, error) {
	a, err := newAuthority()
	if err != nil {
		return nil, err
	}
	serving := x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		IPAddresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(serviceAddress)},
		DNSNames: []string{
			"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		},
	}
	api, err := a.sign(serving)
	if err != nil {
		return nil, err
	}
	serving.Subject.CommonName = "etcd"
	etcd, err := a.sign(serving)
	if err != nil {
		return nil, err
	}
	accounts, err := newKey()
	if err != nil {
		return nil, err
	}
	accountsPEM, err := keyPEM(accounts)
	if err != nil {
		return nil, err
	}
	for name, text := range map[string][]byte{
		caCert: a.pem, apiCert: api.cert, apiKey: api.key, etcdCert: etcd.cert, etcdKey: etcd.key, accountKey: accountsPEM,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			return nil, err
		}
	}
	k := &keys{ca: a.pem, clients: map[string]pair{}}
	for name, groups := range clientGroups {
		subject := pkix.Name{CommonName: "system:" + name, Organization: groups}
		if k.clients[name], err = a.sign(x509.Certificate{Subject: subject}); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority() (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := lasting(x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "evenkeel-kube"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, err
}

// sign makes a certificate for servers and clients alike: etcd is a client of itself.
func (a *authority) sign(c x509.Certificate) (pair, error) {
	key, err := newKey()
	if err != nil {
		return pair{}, err
	}
	template := lasting(c)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return pair{}, err
	}
	text, err := keyPEM(key)
	return pair{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), text}, err
}

// lasting gives a certificate its time, beginning a little before now: clocks go back at times.
func lasting(c x509.Certificate) *x509.Certificate {
	c.NotBefore = time.Now().Add(-time.Hour)
	c.NotAfter = time.Now().Add(validity)
	return &c
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// keyPEM is a key in the form that the API server also takes for the public one of service accounts.
func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), err
}
