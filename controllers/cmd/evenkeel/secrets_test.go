package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// keyLine is a key of a file of keys.
func keyLine(id string) string {
	return id + ":" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(id[:1], 32))) + "\n"
}

// served runs evenkeel dev until the test ends or stop is called, and returns its URL.
func served(t *testing.T, args ...string) (url string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, append([]string{"dev", "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0"}, args...), writer, io.Discard)
		writer.Close()
	}()
	var out bytes.Buffer
	buffer := make([]byte, 1000)
	for !strings.Contains(out.String(), "the API is up: ") {
		n, err := reader.Read(buffer)
		if err != nil {
			t.Fatal(<-ended)
		}
		out.Write(buffer[:n])
	}
	go io.Copy(io.Discard, reader)
	_, url, _ = strings.Cut(out.String(), "the API is up: ")
	return strings.TrimSpace(url), func() error { cancel(); return <-ended }
}

// withPasswords gives a kind its schema, and stores one object of it.
func withPasswords(t *testing.T, url string) {
	t.Helper()
	kinds, err := apiclient.NewKinds(apiclient.Config{URL: url})
	require.NoError(t, err)
	_, err = kinds.Put(t.Context(), "widgets", json.RawMessage(`{"type":"object","properties":{"password":{"type":"string","x-sensitive":true}}}`))
	require.NoError(t, err)
	_, err = passwords(t, url).Put(t.Context(), "blue", map[string]any{"password": "hunter2"})
	require.NoError(t, err)
}

func passwords(t *testing.T, url string) *apiclient.Client[map[string]any, map[string]any] {
	t.Helper()
	c, err := apiclient.New[map[string]any, map[string]any](apiclient.Config{URL: url, Tries: 1}, "widgets")
	require.NoError(t, err)
	return c
}

// TestDevMakesAndKeepsItsKey, of which nobody else may read the file.
func TestDevMakesAndKeepsItsKey(t *testing.T) {
	data := t.TempDir()
	url, stop := served(t, "--data", data)
	withPasswords(t, url)
	require.NoError(t, stop())
	info, err := os.Stat(filepath.Join(data, "secrets.key"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	stored, err := os.ReadFile(filepath.Join(data, "api.db"))
	require.NoError(t, err)
	require.Contains(t, string(stored), "blue")
	require.NotContains(t, string(stored), "hunter2")

	url, stop = served(t, "--data", data)
	o, err := passwords(t, url).Get(t.Context(), "blue")
	require.NoError(t, err)
	require.Equal(t, "hunter2", o.Spec["password"])
	require.NoError(t, stop())
}

// TestKeysAreRotated from one to the next with nothing but the command, beside an API that runs; and what it says is true.
func TestKeysAreRotated(t *testing.T) {
	data := t.TempDir()
	store, file := "sqlite:"+filepath.Join(data, "api.db"), filepath.Join(data, "keys")
	write := func(lines ...string) {
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "")), 0o600))
	}
	write(keyLine("old"))
	url, stop := served(t, "--data", data, "--secrets-key-file", file)
	withPasswords(t, url)
	write(keyLine("new"))
	var out bytes.Buffer
	err := run(t.Context(), []string{"secrets", "rotate", "--store", store, "--secrets-key-file", file}, &out, io.Discard)
	require.ErrorContains(t, err, `1 objects need the key "old"`)
	require.Contains(t, out.String(), `left: widgets/blue: its secrets cannot be decrypted here: decrypt with key "old"`)

	write(keyLine("new"), keyLine("old"))
	said := output(t, "secrets", "rotate", "--store", store, "--secrets-key-file", file)
	require.Contains(t, said, `done: 1 objects looked at, 1 encrypted anew with "new"`)
	require.Contains(t, said, "the others can be removed")
	_, err = passwords(t, url).Get(t.Context(), "blue")
	require.ErrorIs(t, err, apiclient.ErrSealed, "this API has not been given the new key")
	require.NoError(t, stop())

	t.Setenv(keysVariable, strings.TrimSpace(keyLine("new"))+","+keyLine("unused"))
	require.Contains(t, output(t, "secrets", "rotate", "--store", store), "0 encrypted anew")
	url, stop = served(t, "--data", data)
	o, err := passwords(t, url).Get(t.Context(), "blue")
	require.NoError(t, err)
	require.Equal(t, "hunter2", o.Spec["password"])
	require.NoError(t, stop())
	_, err = os.Stat(filepath.Join(data, "secrets.key"))
	require.ErrorIs(t, err, os.ErrNotExist, "it was given keys")
}

// TestRotationSaysWhenRequestsNeedAKey, which they do for a day.
func TestRotationSaysWhenRequestsNeedAKey(t *testing.T) {
	data := t.TempDir()
	t.Setenv(keysVariable, keyLine("old"))
	url, stop := served(t, "--data", data)
	withPasswords(t, url)
	_, err := passwords(t, url).Create(t.Context(), "red", map[string]any{})
	require.NoError(t, err)
	require.NoError(t, stop())
	t.Setenv(keysVariable, keyLine("new")+keyLine("old"))
	said := output(t, "secrets", "rotate", "--store", "sqlite:"+filepath.Join(data, "api.db"))
	require.Regexp(t, `no object needs another key; 1 idempotency keys of the last day need the key "old": remove the others in a day`, said)
}

func TestWrongKeysAreNamed(t *testing.T) {
	t.Chdir(t.TempDir())
	const file = "keys"
	require.NoError(t, os.WriteFile(file, []byte(keyLine("one")), 0o644))
	dev := []string{"dev", "--nats-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"}
	rotate := []string{"secrets", "rotate"}
	wrong := func(args []string, want string) {
		t.Helper()
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute) // it serves, if nothing is wrong
		defer stop()
		err := run(ctx, args, io.Discard, io.Discard)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "hunter2")
	}
	for _, args := range [][]string{dev, rotate, {"api"}} {
		wrong(append(args, "--secrets-key-file", file), "keys: its mode is 0644: others must not read it")
	}
	wrong(rotate, "there are no keys: want --secrets-key-file or EVENKEEL_SECRETS_KEYS")
	t.Setenv(keysVariable, "hunter2")
	for _, args := range [][]string{dev, rotate, {"api"}} {
		wrong(args, "EVENKEEL_SECRETS_KEYS: line 1: want ID:BASE64")
		wrong(append(args, "--secrets-key-file", file), "want one of --secrets-key-file and EVENKEEL_SECRETS_KEYS")
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), append(args, "--print-config"), &out, io.Discard))
		require.NotContains(t, out.String(), "hunter2")
		require.NoError(t, run(t.Context(), append(args, "--help"), &out, io.Discard))
		require.NotContains(t, out.String(), "hunter2")
		require.Contains(t, out.String(), "EVENKEEL_SECRETS_KEYS")
	}
}
