package main

import (
	"bytes"
	"context"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/controllers/api"
)

type (
	job1 struct {
		Size int `json:"size"`
	}
	job2 struct {
		Count int `json:"count" jsonschema:"maximum=10"`
	}
)

// TestKindsAreUpgradedFromTheCommandLine: it says how far it has come, and fails while something is left.
func TestKindsAreUpgradedFromTheCommandLine(t *testing.T) {
	store := "sqlite:" + filepath.Join(t.TempDir(), "api.db")
	notify := func(context.Context, string, string, string) error { return nil }
	v1 := api.VersionOf("v1", func(old job1, _ *job2) (job2, error) { return job2{Count: old.Size}, nil }, func(n job2) (job1, error) { return job1{Size: n.Count}, nil })
	var url, token string
	var jobs *apiclient.Client[job1, struct{}]
	for _, k := range []api.Kind{
		{Name: "jobs", Schema: v1.Schema, Version: "v1"},
		{Name: "jobs", Schema: api.SchemaOf[job2](), Version: "v2", Older: []api.Version{v1}},
	} {
		a, err := api.Open(t.Context(), api.Config{Store: store, Notify: notify, Kinds: []api.Kind{k}})
		require.NoError(t, err)
		defer a.Close()
		srv := httptest.NewServer(a.Handler())
		defer srv.Close()
		url = srv.URL
		if token == "" {
			tokens, err := api.OpenTokens(t.Context(), store)
			require.NoError(t, err)
			defer tokens.Close()
			_, token, err = tokens.Create(t.Context(), "ops", access.Grant{Role: access.Admin}, nil)
			require.NoError(t, err)
			jobs, err = apiclient.New[job1, struct{}](apiclient.Config{URL: url, Token: apiclient.StaticToken(token)}, "jobs")
			require.NoError(t, err)
			for name, size := range map[string]int{"a": 1, "b": 2, "c": 11} {
				_, err = jobs.Create(t.Context(), name, job1{size})
				require.NoError(t, err)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(token), 0o600))
	args := []string{"kinds", "upgrade", "jobs", "--api-url", url}
	require.ErrorIs(t, run(t.Context(), args, io.Discard, io.Discard), apiclient.ErrUnauthorized)
	var out bytes.Buffer
	require.ErrorContains(t, run(t.Context(), append(args, "--token-file", file), &out, io.Discard), "1 objects are left")
	require.Contains(t, out.String(), "2 upgraded; stored: 1 in v1, 2 in v2\n")
	require.Contains(t, out.String(), "left: c: jobs/c: the conversion from v1 to v2 failed: what the hook made does not suit the schema; spec.count")
	t.Setenv("EVENKEEL_TOKEN", token)
	require.ErrorContains(t, run(t.Context(), append(args, "--token-file", file), io.Discard, io.Discard), "want one of --token-file and EVENKEEL_TOKEN")
	_, err := jobs.Delete(t.Context(), "c")
	require.NoError(t, err)
	require.Equal(t, "0 upgraded; stored: 2 in v2\ndone: 0 upgraded\n", output(t, args...))
	require.ErrorIs(t, run(t.Context(), []string{"kinds", "upgrade", "toys", "--api-url", url}, io.Discard, io.Discard), apiclient.ErrNotFound)
	require.ErrorContains(t, run(t.Context(), []string{"kinds", "upgrade", "jobs", "--api-url", "x"}, io.Discard, io.Discard), "--api-url")
}
