package apiclient_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// flaky fails with each of its failures once, then answers; it counts what it is sent.
type flaky struct {
	failures []transport
	sent     int
}

func (f *flaky) RoundTrip(r *http.Request) (*http.Response, error) {
	f.sent++
	if f.sent <= len(f.failures) {
		return f.failures[f.sent-1](r)
	}
	return answers(200, blue)(r)
}

func dialing(*http.Request) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
}

func reset(*http.Request) (*http.Response, error) {
	return nil, &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}
}

// TestCallsAreRepeatedWhereThatDoesNoHarm, and only there.
func TestCallsAreRepeatedWhereThatDoesNoHarm(t *testing.T) {
	busy, gateway := answers(503, "", "Retry-After", "2"), answers(502, "")
	calls := map[string]func(t *testing.T, c *apiclient.Client[doc, doc]) error{
		"get": func(t *testing.T, c *apiclient.Client[doc, doc]) error {
			_, err := c.Get(t.Context(), "blue")
			return err
		},
		"put": func(t *testing.T, c *apiclient.Client[doc, doc]) error {
			_, err := c.Put(t.Context(), "blue", doc{})
			return err
		},
		"patch": func(t *testing.T, c *apiclient.Client[doc, doc]) error {
			_, err := c.Patch(t.Context(), "blue", doc{})
			return err
		},
		"create": func(t *testing.T, c *apiclient.Client[doc, doc]) error {
			_, err := c.Create(t.Context(), "blue", doc{})
			return err
		},
		"delete": func(t *testing.T, c *apiclient.Client[doc, doc]) error {
			_, err := c.Delete(t.Context(), "blue")
			return err
		},
		"put-if": func(t *testing.T, c *apiclient.Client[doc, doc]) error {
			_, err := c.Put(t.Context(), "blue", doc{}, apiclient.IfRevision(1))
			return err
		},
		"patch-status": func(t *testing.T, c *apiclient.Client[doc, doc]) error {
			_, err := c.PatchStatus(t.Context(), "blue", apiclient.StatusPatch{Fence: 1})
			return err
		},
		"patch-status-if": func(t *testing.T, c *apiclient.Client[doc, doc]) error {
			_, err := c.PatchStatus(t.Context(), "blue", apiclient.StatusPatch{Fence: 1, Revision: 1})
			return err
		},
		"last-finalizer": func(t *testing.T, c *apiclient.Client[doc, doc]) error {
			_, err := c.PatchStatus(t.Context(), "blue", apiclient.StatusPatch{Fence: 1, RemoveFinalizers: []string{"a"}})
			return err
		},
	}
	repeatable := map[string]bool{"get": true, "create": true, "put": true, "patch": true, "patch-status": true}
	for name, call := range calls {
		for what, c := range map[string]struct {
			failure transport
			always  bool
		}{
			"nobody was reached": {dialing, true}, "the server says when": {busy, true}, "too many": {answers(429, ""), true},
			"unknown": {reset, false}, "a gateway answers": {gateway, false},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := &flaky{failures: []transport{c.failure, c.failure}}
					err := call(t, repeating(t, f, 0))
					if c.always || repeatable[name] {
						require.NoError(t, err)
						require.Equal(t, 3, f.sent)
						return
					}
					require.ErrorIs(t, err, apiclient.ErrUnavailable)
					require.Equal(t, 1, f.sent)
				})
			})
		}
	}
}

func repeating(t *testing.T, f http.RoundTripper, tries int) *apiclient.Client[doc, doc] {
	t.Helper()
	c, err := apiclient.New[doc, doc](apiclient.Config{URL: "http://api", HTTP: &http.Client{Transport: f}, Tries: tries}, "widgets")
	require.NoError(t, err)
	return c
}

func TestRepetitionsWaitAndEnd(t *testing.T) {
	t.Run("as long as the server says", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for _, form := range []func() string{
				func() string { return "4" },
				func() string { return time.Now().Add(4 * time.Second).UTC().Format(http.TimeFormat) },
			} {
				start := time.Now()
				_, err := repeating(t, &flaky{failures: []transport{answers(429, "", "Retry-After", form())}}, 0).Get(t.Context(), "blue")
				require.NoError(t, err)
				require.InDelta(t, 3.6, time.Since(start).Seconds(), 0.7) // a date has whole seconds
			}
		})
	})
	t.Run("not past the deadline", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			f := &flaky{failures: []transport{answers(429, "", "Retry-After", "60")}}
			_, err := repeating(t, f, 0).Get(t.Context(), "blue")
			require.ErrorIs(t, err, apiclient.ErrUnavailable)
			require.Equal(t, 1, f.sent)
			require.Zero(t, time.Since(start), "there is nothing to wait for")
		})
	})
	t.Run("not for ever", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &flaky{failures: []transport{reset, reset, reset, reset, reset, reset, reset, reset, reset}}
			_, err := repeating(t, f, 0).Get(t.Context(), "blue")
			require.ErrorContains(t, err, "connection reset by peer")
			require.Equal(t, apiclient.DefaultTries, f.sent)
			f.sent = 0
			_, err = repeating(t, f, 2).Get(t.Context(), "blue")
			require.Error(t, err)
			require.Equal(t, 2, f.sent)
		})
	})
	t.Run("not what was refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &flaky{failures: []transport{answers(422, "")}}
			_, err := repeating(t, f, 0).Get(t.Context(), "blue")
			require.ErrorIs(t, err, apiclient.ErrUnexpectedResponse)
			require.Equal(t, 1, f.sent)
		})
	})
	t.Run("with the body each time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var bodies []string
			keep := func(r *http.Request) (*http.Response, error) {
				body, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				bodies = append(bodies, string(body))
				return reset(r)
			}
			_, err := repeating(t, &flaky{failures: []transport{keep, keep}}, 0).Put(t.Context(), "blue", doc{"size": 1})
			require.NoError(t, err)
			require.Equal(t, []string{`{"spec":{"size":1}}`, `{"spec":{"size":1}}`}, bodies)
		})
	})
}
