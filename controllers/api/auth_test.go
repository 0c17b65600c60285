package api

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
)

const listPath = "/v1/objects/widgets"

// TestWrongCredentialsAreRefusedAlike: what was wrong is not said, but for a token that has been right.
func TestWrongCredentialsAreRefusedAlike(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	id, right := s.token(access.Admin)
	revokedID, revoked := s.token(access.Admin)
	require.NoError(t, s.tokens.Revoke(t.Context(), revokedID))
	secret := strings.TrimPrefix(right, "ek_"+id+"_")
	unknown, unknownText, _ := access.NewToken()
	_, others := s.token(access.Admin)
	var bodies []string
	for name, header := range map[string][]string{
		"unknown":           {"Bearer " + unknownText},
		"revoked":           {"Bearer " + revoked},
		"secret of another": {"Bearer ek_" + id + others[len(others)-65:]},
		"one digit off":     {"Bearer " + oneOff(right)},
		"unknown id":        {"Bearer ek_" + unknown + "_" + secret},
		"upper case":        {"Bearer " + strings.ToUpper(right)},
		"cut off":           {"Bearer " + right[:40]},
		"no secret":         {"Bearer ek_" + id + "_"},
		"the hash":          {"Bearer ek_" + id + "_" + s.hashOf(id)},
		"nothing":           {"Bearer"},
		"empty":             {""},
		"no scheme":         {right},
		"the token as it is, with another scheme": {"Basic " + right},
		"another scheme":       {"Basic " + base64.StdEncoding.EncodeToString([]byte("x:"+right))},
		"token of another API": {"Bearer eyJhbGciOiJub25lIn0.e30."},
		"two":                  {"Bearer " + right, "Bearer " + right},
		"two, one wrong":       {"Bearer " + right, "Bearer x"},
		"not text":             {"Bearer ek_\xff_\x00"},
		"quoted":               {`Bearer "` + right + `"`},
	} {
		var pairs []string
		for _, h := range header {
			pairs = append(pairs, "Authorization", h)
		}
		got := s.askFrom(fmt.Sprintf("192.0.2.%d:1", len(bodies)), "GET", listPath, "", "", pairs...)
		require.Equal(t, 401, got.status, name)
		require.Equal(t, "/problems/unauthorized", got.problem.Type, name)
		require.Equal(t, []string{`Bearer realm="evenkeel"`}, got.header.Values("WWW-Authenticate"), name)
		bodies = append(bodies, got.body)
	}
	for _, body := range bodies {
		require.Equal(t, bodies[0], body)
	}
	for _, e := range s.entries() {
		require.Empty(t, e.Principal+e.Name+string(e.Role), "nobody is known")
		require.Empty(t, e.ID)
	}
	require.Equal(t, 200, s.ask("GET", listPath, right, "").status)
	require.Equal(t, 200, s.ask("GET", listPath, "", "", "Authorization", "bearer  "+right).status, "the scheme has no case (RFC 9110, section 11.1)")
	require.Equal(t, 401, s.ask("GET", listPath+"?access_token="+right+"&token="+right, "", "").status)
	s.assertSecret(right, revoked, unknownText, others)
}

// oneOff is a token with another last digit.
func oneOff(token string) string {
	last := len(token) - 1
	if token[last] == '0' {
		return token[:last] + "1"
	}
	return token[:last] + "0"
}

func (s *secured) hashOf(id string) (hash string) {
	require.NoError(s.t, s.store.read.QueryRowContext(s.t.Context(), `SELECT hash FROM tokens WHERE id = $1`, id).Scan(&hash))
	return hash
}

// assertSecret checks that no secret of these tokens stands in a log, in any form that a program might write it in.
func (s *secured) assertSecret(tokens ...string) {
	s.t.Helper()
	for _, token := range tokens {
		secret := token[strings.LastIndex(token, "_")+1:]
		raw, err := hex.DecodeString(secret)
		require.NoError(s.t, err)
		for _, form := range []string{secret, string(raw), base64.StdEncoding.EncodeToString(raw), base64.RawURLEncoding.EncodeToString(raw)} {
			require.NotContains(s.t, s.audit.String(), form)
			require.NotContains(s.t, s.logs.String(), form)
		}
	}
}

// TestTokensExpire at their time, to the microsecond, and say so to their owner alone.
func TestTokensExpire(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	at := s.now.Add(time.Hour)
	token, text, err := s.tokens.Create(t.Context(), "ops", access.Grant{Role: access.Viewer}, &at)
	require.NoError(t, err)
	require.Equal(t, 200, s.ask("GET", listPath, text, "").status)
	s.advance(time.Hour - time.Millisecond)
	require.Equal(t, 200, s.ask("GET", listPath, text, "").status)
	s.advance(time.Millisecond)
	got := s.ask("GET", listPath, text, "")
	require.Equal(t, 401, got.status)
	require.Equal(t, "the token has expired", got.problem.Detail)
	entries := s.entries()
	require.Len(t, entries, 1)
	require.Equal(t, []string{"ops", "token:" + token.ID}, []string{entries[0].Principal, entries[0].ID})
	require.NotContains(t, s.ask("GET", listPath, oneOff(text), "").body, "expired")
	s.assertSecret(text)
}

// TestRevocationHoldsAtOnce: at the next request, on every API of the store.
func TestRevocationHoldsAtOnce(t *testing.T) {
	store := newStore(t)
	first, second := secure(t, store, Access{}), secure(t, store, Access{})
	_, admin := first.token(access.Admin)
	id, viewer := first.token(access.Viewer)
	for _, s := range []*secured{first, second} {
		require.Equal(t, 200, s.ask("GET", listPath, viewer, "").status)
	}
	require.Equal(t, 204, first.ask("DELETE", "/v1/tokens/"+id, admin, "").status)
	for _, s := range []*secured{first, second} {
		require.Equal(t, 401, s.ask("GET", listPath, viewer, "").status)
	}
	require.Equal(t, 404, first.ask("DELETE", "/v1/tokens/"+id, admin, "").status)
}

// TestTokensAreKeptAsHashes: neither the table nor the files of the database have a secret.
func TestTokensAreKeptAsHashes(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	_, admin := s.token(access.Admin)
	made := s.ask("POST", "/v1/tokens", admin, `{"name":"ci@example.com","role":"editor","kinds":["widgets"],"expiresAt":"2999-01-02T03:04:05.123456789+01:00"}`)
	require.Equal(t, 201, made.status, made.body)
	require.Equal(t, "no-store", made.header.Get("Cache-Control"))
	_, rest, _ := strings.Cut(made.body, `"token":"`)
	text, _, _ := strings.Cut(rest, `"`)
	require.Equal(t, 200, s.ask("GET", listPath, text, "").status, made.body)

	rows, err := s.store.read.QueryContext(t.Context(), `SELECT * FROM tokens`)
	require.NoError(t, err)
	defer rows.Close()
	columns, err := rows.Columns()
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"id", "hash", "name", "role", "kinds", "created_at", "expires_at"}, columns)
	var dump strings.Builder
	for rows.Next() {
		values := make([]any, len(columns))
		for i := range values {
			values[i] = new(any)
		}
		require.NoError(t, rows.Scan(values...))
		for _, v := range values {
			fmt.Fprintf(&dump, "%v ", *v.(*any))
		}
	}
	require.NoError(t, rows.Err())
	if path, ok := strings.CutPrefix(s.where, "sqlite:"); ok {
		files, err := filepath.Glob(path + "*")
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, f := range files {
			data, err := os.ReadFile(f)
			require.NoError(t, err)
			dump.Write(data)
		}
	}
	require.Contains(t, dump.String(), "ci@example.com")
	for _, token := range []string{admin, text} {
		secret := token[strings.LastIndex(token, "_")+1:]
		raw, err := hex.DecodeString(secret)
		require.NoError(t, err)
		for _, form := range []string{secret, string(raw), base64.StdEncoding.EncodeToString(raw)} {
			require.NotContains(t, dump.String(), form)
			require.NotContains(t, s.ask("GET", "/v1/tokens", admin, "").body, form)
		}
	}
	listed := s.ask("GET", "/v1/tokens", admin, "").body
	require.NotContains(t, listed, "hash")
	require.NotContains(t, listed, s.hashOf(strings.Split(text, "_")[1]))
	require.Contains(t, listed, `"name":"ci@example.com","role":"editor","kinds":["widgets"]`)
	require.Contains(t, listed, `"expiresAt":"2999-01-02T02:04:05.123456Z"`)
	s.assertSecret(admin, text)
}

func TestWrongTokensAreNotMade(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	_, admin := s.token(access.Admin)
	for body, want := range map[string]string{
		`{"role":"viewer"}`:                                                  "name",
		`{"name":"","role":"viewer"}`:                                        "body.name",
		`{"name":"a b","role":"viewer"}`:                                     "body.name",
		`{"name":"` + strings.Repeat("x", 101) + `","role":"viewer"}`:        "body.name",
		`{"name":"x"}`:                                                       "role",
		`{"name":"x","role":"root"}`:                                         "root",
		`{"name":"x","role":"viewer","kinds":[""]}`:                          "kind",
		`{"name":"x","role":"viewer","kinds":["A"]}`:                         "kind",
		`{"name":"x","role":"viewer","kinds":"widgets"}`:                     "body.kinds",
		`{"name":"x","role":"viewer","expiresAt":"2020-01-01T00:00:00Z"}`:    "body.expiresAt",
		`{"name":"x","role":"viewer","expiresAt":"never"}`:                   "body.expiresAt",
		`{"name":"x","role":"viewer","kind":["widgets"]}`:                    "body.kind",
		`{"name":"x","role":"viewer","id":"0123456789abcdef","hash":"0000"}`: "body",
	} {
		got := s.ask("POST", "/v1/tokens", admin, body)
		require.Equal(t, 422, got.status, body)
		require.Equal(t, "/problems/invalid", got.problem.Type)
		require.Contains(t, got.body, want, body)
	}
	tokens, _, err := s.tokens.List(t.Context(), "", 10)
	require.NoError(t, err)
	require.Len(t, tokens, 1)
	for _, id := range []string{"x", "%00", "a%2Fb", "%FF", strings.Repeat("x", 1000)} {
		got := s.ask("DELETE", "/v1/tokens/"+id, admin, "")
		require.Equal(t, 404, got.status, id)
		require.Equal(t, "/problems/not-found", got.problem.Type)
	}
}

// TestTokensAreListedInPages through the HTTP interface and in code, each of them once.
func TestTokensAreListedInPages(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	var want []string
	_, admin := s.token(access.Admin)
	for range 6 {
		id, _ := s.token(access.Viewer, "widgets")
		want = append(want, id)
	}
	want = append(want, strings.Split(admin, "_")[1])
	var got []string
	pages := 0
	for cursor := ""; pages == 0 || cursor != ""; pages++ {
		var page struct {
			Items []Token
			Next  string
		}
		answered := s.ask("GET", "/v1/tokens?limit=3&cursor="+cursor, admin, "")
		require.Equal(t, 200, answered.status)
		decode(t, answered.body, &page)
		for _, token := range page.Items {
			got = append(got, token.ID)
		}
		cursor = page.Next
	}
	require.Equal(t, 3, pages)
	require.ElementsMatch(t, want, got)
	require.Equal(t, 422, s.ask("GET", "/v1/tokens?cursor=!", admin, "").status)
	require.ErrorIs(t, s.tokens.Revoke(t.Context(), "0000000000000000"), apiclient.ErrNotFound)
}

// TestStoreThatFailsLetsNobodyIn: it is no reason to be let in, nor to be told that a token is wrong.
func TestStoreThatFailsLetsNobodyIn(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	_, admin := s.token(access.Admin)
	_, err := s.store.write.ExecContext(t.Context(), `DROP TABLE tokens`)
	require.NoError(t, err)
	for _, request := range []string{"GET " + listPath, "PUT " + listPath + "/blue"} {
		method, path, _ := strings.Cut(request, " ")
		got := s.ask(method, path, admin, `{"spec":{}}`)
		require.Equal(t, 500, got.status, "all else in the store is there")
		require.Contains(t, got.problem.Detail, "look up who asks")
		require.NotContains(t, got.body, "tokens")
	}
	require.Equal(t, []int{500, 500}, statuses(s.entries()))
	require.Contains(t, s.logs.String(), "look up a token")
	all, _ := rows(t, s.API)
	require.Zero(t, all)
	s.assertSecret(admin)
}

func TestWrongAccessIsNamed(t *testing.T) {
	for want, cfg := range map[string]Access{
		"ClientCerts must be empty": {Insecure: true, ClientCerts: map[string]access.Grant{"a": {Role: access.Viewer}}},
		"as Rate and as Burst":      {Rate: -1},
		"as Rate":                   {Rate: math.NaN()},
		"not below 0":               {Rate: math.Inf(1)},
		"as Burst":                  {Burst: -1},
		`ClientCerts "a": role ""`:  {ClientCerts: map[string]access.Grant{"a": {}}},
		"a common name is empty":    {ClientCerts: map[string]access.Grant{"": {Role: access.Viewer}}},
	} {
		_, err := Open(t.Context(), Config{Store: "sqlite::memory:", Notify: new(ear).notify, Access: cfg})
		require.ErrorContains(t, err, want)
	}
}
