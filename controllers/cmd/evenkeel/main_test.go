package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

func settings(t *testing.T, args ...string) map[string]any {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), append(args, "--print-config"), &out, io.Discard))
	var got map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	return got
}

// TestFlagsEnvironmentAndFileAgree: what can be said in one way can be said in each, and a flag wins over the environment,
// the environment over the file.
func TestFlagsEnvironmentAndFileAgree(t *testing.T) {
	existing := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(existing, nil, 0o600))
	for command, all := range map[string]map[string]string{
		"api": {
			"listen": "127.0.0.1:1", "tls-cert": existing, "tls-key": existing, "store": "sqlite:a", "nats": "nats://n:1", "nats-creds": existing,
			"nats-nkey": existing, "nats-ca": existing, "prefix": "p", "replicas": "3", "insecure-loopback": "true",
			"tls-client-ca": existing, "client-cert": "a=viewer;b,c=editor:x,y", "behind-tls-proxy": "true", "audit-log": "a.log", "rate": "2.5", "burst": "7", "secrets-key-file": existing,
			"workloads": "true",
		},
		"dev": {
			"listen": "127.0.0.1:1", "tls-cert": existing, "tls-key": existing, "data": "d", "nats-listen": "127.0.0.1:2", "insecure-loopback": "false",
			"tls-client-ca": existing, "client-cert": "a=viewer", "behind-tls-proxy": "true", "audit-log": "-", "rate": "1", "burst": "1", "secrets-key-file": existing,
			"workloads": "false",
		},
		"workload": {
			"nats": "nats://n:1", "nats-creds": existing, "nats-nkey": existing, "nats-ca": existing, "prefix": "p", "api": "http://a:1",
			"token-file": existing, "editor-token-file": existing, "kubeconfigs": t.TempDir(), "probe": "127.0.0.1:1",
		},
		"secrets rotate": {"store": "sqlite:a", "secrets-key-file": existing},
	} {
		for name, value := range all {
			t.Run(command+" "+name, func(t *testing.T) {
				variable := "EVENKEEL_" + strings.ReplaceAll(strings.ToUpper(name), "-", "_")
				file := filepath.Join(t.TempDir(), "config.json")
				text, err := json.Marshal(map[string]string{name: value})
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(file, text, 0o600))

				byFlag := settings(t, append(strings.Fields(command), "--"+name+"="+value)...)
				require.NotEqual(t, settings(t, strings.Fields(command)...), byFlag, "it is no default")
				require.Equal(t, byFlag, settings(t, append(strings.Fields(command), "--config", file)...))
				t.Setenv(variable, value)
				require.Equal(t, byFlag, settings(t, strings.Fields(command)...))
			})
		}
	}
	t.Run("precedence", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "config.json")
		require.NoError(t, os.WriteFile(file, []byte(`{"prefix":"of-the-file"}`), 0o600))
		require.Equal(t, "of-the-file", settings(t, "api", "--config", file)["prefix"])
		t.Setenv("EVENKEEL_PREFIX", "of-the-environment")
		require.Equal(t, "of-the-environment", settings(t, "api", "--config", file)["prefix"])
		require.Equal(t, "of-the-flag", settings(t, "api", "--config", file, "--prefix", "of-the-flag")["prefix"])
	})
}

func TestPrintedSettingsHoldNoSecrets(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{
		"api", "--print-config", "--store", "postgres://me:hunter2@db/x?password=hunter2", "--nats", "nats://a:hunter2@n1,nats://hunter2@n2",
	}, &out, io.Discard))
	require.NotContains(t, out.String(), "hunter2")
}

func TestWrongInputIsNamed(t *testing.T) {
	existing := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(existing, nil, 0o600))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{}, "expected one of"},
		{[]string{"serve"}, "unexpected argument serve"},
		{[]string{"api", "--stor", "x"}, "unknown flag --stor"},
		{[]string{"api", "--nats-creds", "/no/such/file"}, "--nats-creds"},
		{[]string{"dev", "--listen", "0.0.0.0:0", "--nats-listen", "127.0.0.1:0"}, `Config.Listen "0.0.0.0:0"`},
		{[]string{"dev", "--listen", "8080", "--nats-listen", "127.0.0.1:0"}, `Config.Listen "8080": want HOST:PORT`},
		{[]string{"api", "--store", "mysql://x"}, "connect to NATS at nats://127.0.0.1:1"},
		{[]string{"dev", "--tls-key", existing, "--nats-listen", "127.0.0.1:0"}, "--tls-cert and --tls-key go together"},
		{[]string{"dev", "--client-cert", "a=viewer", "--nats-listen", "127.0.0.1:0"}, "--tls-client-ca and --client-cert go together"},
		{[]string{"dev", "--tls-client-ca", existing, "--client-cert", "a=viewer", "--nats-listen", "127.0.0.1:0"}, "--tls-client-ca needs --tls-cert"},
		{[]string{"dev", "--no-insecure-loopback", "--listen", "0.0.0.0:0", "--nats-listen", "127.0.0.1:0"}, "want Config.TLS"},
		{[]string{"dev", "--audit-log", "/no/such/folder/x", "--nats-listen", "127.0.0.1:0"}, "--audit-log"},
		{[]string{"dev", "--rate=-1", "--nats-listen", "127.0.0.1:0"}, "as Rate and as Burst"},
		{[]string{"token", "create", "--name", "x"}, "--role"},
		{[]string{"token", "create", "--role", "viewer"}, "--name"},
		{[]string{"token", "create", "--name", "x", "--role", "root"}, `role "root"`},
		{[]string{"token", "create", "--name", "x", "--role", "viewer", "--kinds", ""}, `kind ""`},
		{[]string{"token", "create", "--name", "x", "--role", "viewer", "--expires=-1h"}, "body.expiresAt"},
		{[]string{"token", "create", "--name", "x", "--role", "viewer", "--expires", "0s"}, "body.expiresAt"},
		{[]string{"token", "list", "--store", "postgres://me:hunter2@127.0.0.1:1/x"}, "xxxxx"},
		{[]string{"token", "revoke", "0123456789abcdef"}, "no token of that id"},
	} {
		t.Chdir(t.TempDir())
		t.Setenv("EVENKEEL_NATS", "nats://127.0.0.1:1")
		require.ErrorContains(t, run(t.Context(), c.args, io.Discard, io.Discard), c.want, "%v", c.args)
	}
	file := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"stroe":"x"}`), 0o600))
	require.ErrorContains(t, run(t.Context(), []string{"api", "--config", file}, io.Discard, io.Discard), `"stroe", which is no flag`)
	require.NoError(t, run(t.Context(), []string{"--help"}, io.Discard, io.Discard))
}

// TestDevServes: one command, and objects can be stored; a second one on the same folder is told so; the next run finds them.
func TestDevServes(t *testing.T) {
	data := t.TempDir()
	args := []string{"dev", "--data", data, "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0"}
	for run1 := range 2 {
		ctx, stop := context.WithCancel(t.Context())
		reader, writer := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			ended <- run(ctx, args, writer, io.Discard)
			writer.Close()
		}()
		url := ""
		lines := bufio.NewScanner(reader)
		for url == "" && lines.Scan() {
			_, url, _ = strings.Cut(lines.Text(), "the API is up: ")
		}
		require.NotEmpty(t, url)
		for _, probe := range []string{"/livez", "/readyz"} {
			resp, err := http.Get(url + probe)
			require.NoError(t, err)
			resp.Body.Close()
			require.Equal(t, 200, resp.StatusCode, probe)
		}
		widgets, err := apiclient.New[map[string]any, map[string]any](apiclient.Config{URL: url}, "widgets")
		require.NoError(t, err)
		if run1 == 0 {
			_, err = widgets.Create(ctx, "blue", map[string]any{"size": 3})
			require.NoError(t, err)
			require.ErrorContains(t, run(ctx, args, io.Discard, io.Discard), "is in use by another process")
		}
		_, err = widgets.Get(ctx, "blue")
		require.NoError(t, err)
		stop()
		require.NoError(t, <-ended)
	}
}
