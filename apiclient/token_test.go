package apiclient_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// seen is a transport that keeps the Authorization header of the latest request.
type seen struct {
	header []string
	answer transport
}

func (s *seen) RoundTrip(r *http.Request) (*http.Response, error) {
	s.header = r.Header.Values("Authorization")
	return s.answer(r)
}

func withToken(t *testing.T, s *seen, source apiclient.TokenSource) *apiclient.Client[doc, doc] {
	t.Helper()
	c, err := apiclient.New[doc, doc](apiclient.Config{
		URL: "http://user:password@api", HTTP: &http.Client{Transport: s}, Token: source, Tries: 1,
	}, "widgets")
	require.NoError(t, err)
	return c
}

func TestTokenIsSentWithEachCall(t *testing.T) {
	s := &seen{answer: answers(200, `{"items":[],"name":"blue","uid":"u"}`)}
	c := withToken(t, s, apiclient.StaticToken("ek_1_a"))
	_, err := c.Get(t.Context(), "blue")
	require.NoError(t, err)
	require.Equal(t, []string{"Bearer ek_1_a"}, s.header)
	s.header = nil
	for range c.All(t.Context()) {
	}
	require.Equal(t, []string{"Bearer ek_1_a"}, s.header)
	s.header, s.answer = nil, answers(401, `{}`)
	for _, err := range c.Watch(t.Context()) {
		require.ErrorIs(t, err, apiclient.ErrUnauthorized)
		break
	}
	require.Equal(t, []string{"Bearer ek_1_a"}, s.header)
}

// TestTokenMayChange: the file and the function are asked again for each request.
func TestTokenMayChange(t *testing.T) {
	s := &seen{answer: answers(200, blue)}
	file := filepath.Join(t.TempDir(), "token")
	calls := 0
	fromFile := withToken(t, s, apiclient.TokenFile(file))
	fromFunction := withToken(t, s, func(context.Context) (string, error) {
		calls++
		return fmt.Sprintf("t%d", calls), nil
	})
	for i := range 2 {
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, " f%d\n", i+1), 0o600))
		for c, want := range map[*apiclient.Client[doc, doc]]string{fromFile: "f", fromFunction: "t"} {
			_, err := c.Get(t.Context(), "blue")
			require.NoError(t, err)
			require.Equal(t, []string{fmt.Sprintf("Bearer %s%d", want, i+1)}, s.header)
		}
	}
}

// TestRefusalsHaveTheirErrors: also those of a proxy, which knows nothing of problem types.
func TestRefusalsHaveTheirErrors(t *testing.T) {
	all := []error{apiclient.ErrUnauthorized, apiclient.ErrForbidden, apiclient.ErrUnavailable, apiclient.ErrNotFound, apiclient.ErrInvalid}
	for status, want := range map[int]error{401: apiclient.ErrUnauthorized, 403: apiclient.ErrForbidden, 429: apiclient.ErrUnavailable} {
		for body, contentType := range map[string]string{`{"type":"/problems/x","status":200}`: "application/problem+json", `<html>`: "text/html"} {
			_, err := client(t, answers(status, body, "Content-Type", contentType)).Get(t.Context(), "blue")
			for _, e := range all {
				require.Equal(t, e == want, errors.Is(err, e), "%d %v", status, e)
			}
		}
	}
}

// TestTokenStaysOutOfErrors: whatever fails, and however wrong the token is.
func TestTokenStaysOutOfErrors(t *testing.T) {
	const secret = "hunter2"
	broken := transport(func(r *http.Request) (*http.Response, error) { return nil, errors.New("connection refused") })
	file := filepath.Join(t.TempDir(), "missing")
	for name, c := range map[string]struct {
		source apiclient.TokenSource
		answer transport
		want   error
	}{
		"refused":           {apiclient.StaticToken(secret), answers(401, `{}`), apiclient.ErrUnauthorized},
		"unreachable":       {apiclient.StaticToken(secret), broken, apiclient.ErrUnavailable},
		"with a line break": {apiclient.StaticToken(secret + "\r\nX: y"), broken, apiclient.ErrUnauthorized},
		"with a space":      {apiclient.StaticToken(secret + " x"), broken, apiclient.ErrUnauthorized},
		"not ASCII":         {apiclient.StaticToken(secret + "é"), broken, apiclient.ErrUnauthorized},
		"empty":             {apiclient.StaticToken(""), broken, apiclient.ErrUnauthorized},
		"no file":           {apiclient.TokenFile(file), broken, os.ErrNotExist},
		"no server of tokens": {func(context.Context) (string, error) {
			return "", &url.Error{Op: "Post", URL: "https://idp?secret=" + secret, Err: errors.New("refused")}
		}, broken, apiclient.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			s := &seen{answer: c.answer}
			_, err := withToken(t, s, c.source).Get(t.Context(), "blue")
			require.ErrorIs(t, err, c.want)
			require.NotContains(t, err.Error(), secret)
			require.NotContains(t, fmt.Sprintf("%#v", err), secret)
		})
	}
	cfg := apiclient.Config{URL: "http://api", Token: apiclient.StaticToken(secret)}
	require.NotContains(t, fmt.Sprintf("%+v %#v", cfg, cfg), secret)
}
