package api

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
)

// TestEachPrincipalHasItsLimit: one that asks too often is told when to come back, and others do not notice.
func TestEachPrincipalHasItsLimit(t *testing.T) {
	s := secure(t, newStore(t), Access{Rate: 0.5, Burst: 3})
	_, a := s.token(access.Viewer)
	_, b := s.token(access.Viewer)
	for range 3 {
		require.Equal(t, 200, s.ask("GET", listPath, a, "").status)
	}
	got := s.ask("GET", listPath, a, "")
	require.Equal(t, 429, got.status)
	require.Equal(t, "/problems/rate-limited", got.problem.Type)
	require.Equal(t, "2", got.header.Get("Retry-After"))
	require.ErrorIs(t, &got.problem, apiclient.ErrUnavailable)
	require.Equal(t, 429, s.ask("PUT", listPath+"/blue", a, `{"spec":{}}`).status, "before what it may not")
	require.Equal(t, []int{429, 429}, statuses(s.entries()))
	require.Equal(t, 200, s.ask("GET", listPath, b, "").status)
	s.advance(time.Second)
	got = s.ask("GET", listPath, a, "")
	require.Equal(t, []any{429, "1"}, []any{got.status, got.header.Get("Retry-After")}, "what was refused did not count")
	s.advance(time.Second)
	require.Equal(t, 200, s.ask("GET", listPath, a, "").status)
	require.Equal(t, 429, s.ask("GET", listPath, a, "").status)
}

func TestNoLimitUnlessAsked(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	_, viewer := s.token(access.Viewer)
	for range 200 {
		require.Equal(t, 200, s.ask("GET", listPath, viewer, "").status)
	}
	require.Empty(t, s.door.principals.callers.at)
	require.Equal(t, 1, newLimits[string](0.2, 0).burst)
	require.Equal(t, 3, newLimits[string](2.5, 0).burst)
}

// TestWrongCredentialsAreLimitedByAddress: beyond the limit no credential is looked up that was never right, and whoever
// shares the address and has one that was goes on.
func TestWrongCredentialsAreLimitedByAddress(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	_, familiar := s.token(access.Viewer)
	_, fresh := s.token(access.Viewer)
	revokedID, revoked := s.token(access.Viewer)
	const here, there = "192.0.2.1:1", "192.0.2.2:1"
	get := func(remote, token string) answer { return s.askFrom(remote, "GET", listPath, token, "") }
	require.Equal(t, 200, get(here, familiar).status)
	require.Equal(t, 200, get(here, revoked).status)
	for range failuresAtOnce {
		_, wrong, _ := access.NewToken()
		require.Equal(t, 401, get(here, wrong).status)
		require.Equal(t, 401, get(here, "").status, "no credential is no wrong one")
	}
	_, wrong, _ := access.NewToken()
	for _, token := range []string{wrong, "malformed", fresh} {
		got := get("192.0.2.1:999", token)
		require.Equal(t, 429, got.status, "the port does not matter")
		require.Equal(t, "1", got.header.Get("Retry-After"))
		require.Equal(t, "/problems/rate-limited", got.problem.Type)
	}
	require.Equal(t, 200, get(here, familiar).status)
	require.Equal(t, 200, get(there, fresh).status)
	require.Equal(t, 200, get(here, fresh).status, "it has been right by now")

	require.NoError(t, s.tokens.Revoke(t.Context(), revokedID))
	require.Equal(t, 401, get(here, revoked).status)
	require.Equal(t, 429, get(here, revoked).status, "it is not familiar any more")
	s.advance(time.Second)
	require.Equal(t, 401, get(here, wrong).status)
	require.Equal(t, 429, get(here, wrong).status)
	s.assertSecret(familiar, fresh, revoked, wrong)
}

func TestAddresses(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:1": "192.0.2.1/32", "[::ffff:192.0.2.1]:1": "192.0.2.1/32", "[2001:db8:1:2:3::4]:1": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1": "fe80::/64", "@": "invalid Prefix", "": "invalid Prefix",
	} {
		require.Equal(t, want, addressOf(&http.Request{RemoteAddr: remote}).String(), remote)
	}
}

// TestCallersAreBounded: memory does not grow with the number of callers; who asked lately is remembered.
func TestCallersAreBounded(t *testing.T) {
	now := time.Now()
	l := newLimits[string](1, 1)
	l.callers.limit = 3
	require.Zero(t, l.take("a", now))
	for i := range 100 {
		require.NotZero(t, l.take("a", now))
		require.Zero(t, l.take(fmt.Sprint(i), now))
		require.LessOrEqual(t, len(l.callers.at), 3)
		require.Equal(t, len(l.callers.at), l.callers.order.Len())
	}
	require.Zero(t, l.take("0", now), "it was forgotten")
	f := familiar[int]{keys: recent[int, struct{}]{limit: 2}}
	for i := range 5 {
		f.add(i)
		f.add(i)
		f.drop(i + 100)
	}
	require.Equal(t, []bool{false, true, true}, []bool{f.has(2), f.has(3), f.has(4)})
	f.drop(4)
	require.False(t, f.has(4))
	require.Equal(t, 1, f.keys.order.Len())
}
