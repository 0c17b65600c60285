package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
)

// output runs a command to its end and returns what it printed.
func output(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), args, &out, io.Discard), "%v", args)
	return out.String()
}

// TestTokensFromTheFirstOn: a new installation gets its first token from the database; it is good for the API that serves
// this database, and no longer once it is revoked. The audit log is for its owner alone, and is added to.
func TestTokensFromTheFirstOn(t *testing.T) {
	data := t.TempDir()
	store, log := "sqlite:"+filepath.Join(data, "api.db"), filepath.Join(data, "audit.log")
	admin := output(t, "token", "create", "--store", store, "--name", "ops", "--role", "admin", "--expires", "720h")
	require.Regexp(t, `^ek_[0-9a-f]{16}_[0-9a-f]{64}\n$`, admin)
	admin = strings.TrimSpace(admin)
	limited := strings.TrimSpace(output(t, "token", "create", "--store", store, "--name", "ci", "--role", "editor", "--kinds", "jobs,toys"))

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{
			"dev", "--no-insecure-loopback", "--data", data, "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0", "--audit-log", log,
		}, writer, io.Discard)
		writer.Close()
	}()
	url := ""
	lines := bufio.NewScanner(reader)
	for url == "" && lines.Scan() {
		_, url, _ = strings.Cut(lines.Text(), "the API is up: ")
	}
	require.NotEmpty(t, url)
	create := func(token string) error {
		cfg := apiclient.Config{URL: url}
		if token != "" {
			cfg.Token = apiclient.StaticToken(token)
		}
		widgets, err := apiclient.New[map[string]any, map[string]any](cfg, "widgets")
		require.NoError(t, err)
		_, err = widgets.Put(ctx, "blue", map[string]any{})
		return err
	}
	require.NoError(t, create(admin))
	require.ErrorIs(t, create(limited), apiclient.ErrForbidden)
	require.ErrorIs(t, create(""), apiclient.ErrUnauthorized)

	listed := output(t, "token", "list", "--store", store)
	require.Regexp(t, `ops +admin +all +\S+Z +\S+Z`, listed)
	require.Regexp(t, `ci +editor +jobs,toys +\S+Z +never`, listed)
	require.NotContains(t, listed, admin[20:])
	require.Empty(t, output(t, "token", "revoke", "--store", store, strings.Split(admin, "_")[1]))
	require.ErrorIs(t, create(admin), apiclient.ErrUnauthorized)
	stop()
	require.NoError(t, <-ended)

	info, err := os.Stat(log)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, 4, strings.Count(string(text), "\n"), "%s", text)
	require.NotContains(t, string(text), admin[20:])
}

func TestAuditLogIsAddedTo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	require.NoError(t, os.WriteFile(path, []byte("before\n"), 0o600))
	for range 2 {
		to, end, err := (&listenFlags{AuditLog: path}).audit(nil)
		require.NoError(t, err)
		_, err = to.Write([]byte("line\n"))
		require.NoError(t, err)
		require.NoError(t, end())
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "before\nline\nline\n", string(text))
	var out bytes.Buffer
	to, _, err := (&listenFlags{AuditLog: "-"}).audit(&out)
	require.NoError(t, err)
	require.Same(t, &out, to)
	to, _, err = (&listenFlags{}).audit(&out)
	require.NoError(t, err)
	require.Nil(t, to)
}

func TestClientCertFlag(t *testing.T) {
	grants, err := (&listenFlags{ClientCert: []string{"ops=admin", "CN=a, b=editor:x,y"}}).clientCerts()
	require.NoError(t, err)
	require.Equal(t, map[string]access.Grant{"ops": {Role: access.Admin}, "CN=a, b": {Role: access.Editor, Kinds: []string{"x", "y"}}}, grants)
	for text, want := range map[string]string{"ops": "want NAME=ROLE", "=admin": "want NAME=ROLE", "ops=": `role ""`, "ops=admin:": `kind ""`, "ops=root": `role "root"`} {
		_, err := (&listenFlags{ClientCert: []string{text}}).clientCerts()
		require.ErrorContains(t, err, want, text)
	}
	_, err = (&listenFlags{ClientCert: []string{"ops=admin", "ops=viewer"}}).clientCerts()
	require.ErrorContains(t, err, "twice")
}

func TestTLSFlags(t *testing.T) {
	srv := httptest.NewTLSServer(nil)
	srv.Close()
	folder := t.TempDir()
	cert, key, empty := filepath.Join(folder, "cert"), filepath.Join(folder, "key"), filepath.Join(folder, "empty")
	pair := srv.TLS.Certificates[0]
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), 0o600))
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(empty, nil, 0o600))

	config, err := (&listenFlags{TLSCert: cert, TLSKey: key}).tls()
	require.NoError(t, err)
	require.Equal(t, tls.NoClientCert, config.ClientAuth)
	config, err = (&listenFlags{TLSCert: cert, TLSKey: key, TLSClientCA: cert, ClientCert: []string{"a=viewer"}}).tls()
	require.NoError(t, err)
	require.Equal(t, tls.VerifyClientCertIfGiven, config.ClientAuth)
	require.NotNil(t, config.ClientCAs)
	_, err = (&listenFlags{TLSCert: cert, TLSKey: key, TLSClientCA: empty, ClientCert: []string{"a=viewer"}}).tls()
	require.ErrorContains(t, err, "--tls-client-ca")
	_, err = (&listenFlags{TLSCert: empty, TLSKey: key}).tls()
	require.ErrorContains(t, err, "--tls-cert")
}
