package api

import (
	"context"
	"crypto/subtle"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/internal/objects"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

const (
	tokenColumns = `id, name, role, kinds, created_at, expires_at` //nolint:gosec // it is the name that looks like a secret
	insertToken  = `INSERT INTO tokens (` + tokenColumns + `, hash) VALUES ($1, $2, $3, $4, $5, $6, $7)`
	selectToken  = `SELECT ` + tokenColumns + `, hash FROM tokens WHERE id = $1`
	selectTokens = `SELECT ` + tokenColumns + `, hash FROM tokens WHERE id > $1 ORDER BY id LIMIT $2`
	deleteToken  = `DELETE FROM tokens WHERE id = $1`
	// maxTokenName is the limit of a token's name, in bytes.
	maxTokenName = 100
)

// Token is a bearer token, without its secret.
type Token struct {
	// ID is in the token's text; it is no secret.
	ID string `json:"id"`
	// Name says to people and to the audit log whose it is. Several tokens may have it, the old one and the new one say.
	Name string `json:"name"`
	// Role and Kinds are its [access.Grant].
	Role  access.Role `json:"role"`
	Kinds []string    `json:"kinds,omitempty" nullable:"false"`
	// CreatedAt is when it was made.
	CreatedAt time.Time `json:"createdAt"`
	// ExpiresAt is from when on it is refused; nil means never.
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
}

// Tokens are the bearer tokens of a store. They are safe for concurrent use. Several processes may use them at once: who
// revokes one, revokes it everywhere.
type Tokens struct{ store *store }

// OpenTokens opens the tokens of a store (Config.Store), and brings its schema up to date. It is for whoever has the
// database and no token yet: no permission is asked, and no audit log kept. Close them after use.
func OpenTokens(ctx context.Context, store string) (*Tokens, error) {
	s, err := openStore(ctx, store, nil)
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	return &Tokens{store: s}, nil
}

// Close closes the store.
func (t *Tokens) Close() error { return t.store.close() }

// Create makes a token. text is what its owner sends; it is not kept and cannot be shown again. What is wrong with the
// request comes as an [apiclient.Problem].
func (t *Tokens) Create(ctx context.Context, name string, grant access.Grant, expiresAt *time.Time) (_ Token, text string, err error) {
	now := objects.Now()
	if err := checkToken(name, grant, expiresAt, now); err != nil {
		return Token{}, "", err
	}
	id, text, hash := access.NewToken()
	if expiresAt != nil {
		at := expiresAt.UTC().Truncate(time.Microsecond)
		expiresAt = &at
	}
	kinds, err := json.Marshal(append([]string{}, grant.Kinds...)) // never null
	if err == nil {
		_, err = t.store.write.ExecContext(ctx, insertToken, id, name, string(grant.Role), string(kinds), now.UnixMicro(), toMicro(expiresAt), hex.EncodeToString(hash[:]))
	}
	if err != nil {
		return Token{}, "", fmt.Errorf("create token %s: %w", name, err)
	}
	return Token{ID: id, Name: name, Role: grant.Role, Kinds: grant.Kinds, CreatedAt: now, ExpiresAt: expiresAt}, text, nil
}

func checkToken(name string, grant access.Grant, expiresAt *time.Time, now time.Time) error {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._@/-", r)
	}
	switch {
	case name == "" || len(name) > maxTokenName || strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }):
		return objects.Invalid("body.name", fmt.Sprintf("want 1 to %d letters, digits and . _ @ / -", maxTokenName))
	case expiresAt != nil && !expiresAt.After(now):
		return objects.Invalid("body.expiresAt", "want a time that is yet to come")
	}
	if err := grant.Check(); err != nil {
		return objects.Invalid("body", err.Error())
	}
	return nil
}

// List returns up to limit tokens in the order of their ids, those behind the id after; more says that there are others.
func (t *Tokens) List(ctx context.Context, after string, limit int) (items []Token, more bool, err error) {
	rows, err := t.store.read.QueryContext(ctx, selectTokens, after, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list tokens: %w", err)
	}
	defer rows.Close()
	items = []Token{}
	for rows.Next() {
		if len(items) == limit {
			return items, true, nil
		}
		token, _, err := scanToken(rows)
		if err != nil {
			return nil, false, fmt.Errorf("list tokens: %w", err)
		}
		items = append(items, token)
	}
	if err := rows.Err(); err != nil {
		return nil, false, fmt.Errorf("list tokens: %w", err)
	}
	return items, false, nil
}

// Revoke removes a token: the next request with it is refused. It fails with [apiclient.ErrNotFound] if there is none of
// that id.
func (t *Tokens) Revoke(ctx context.Context, id string) error {
	missing := objects.NewProblem(http.StatusNotFound, apiclient.TypeNotFound, "there is no token of that id")
	if subject.CheckObject("tokens", id) != nil {
		return missing // not every text can be asked of a database
	}
	result, err := t.store.write.ExecContext(ctx, deleteToken, id)
	if err != nil {
		return fmt.Errorf("revoke token: %w", err)
	}
	switch n, err := result.RowsAffected(); {
	case err != nil:
		return fmt.Errorf("revoke token: %w", err)
	case n == 0:
		return missing
	}
	return nil
}

// verify finds the token that a text is of. ok is false if there is none: nothing says which part of it was wrong. Whether it
// has expired is left to the caller, who may tell its owner.
func (t *Tokens) verify(ctx context.Context, text string) (token Token, ok bool, err error) {
	id, hash, ok := access.ParseToken(text)
	if !ok {
		return Token{}, false, nil
	}
	token, kept, err := scanToken(t.store.read.QueryRowContext(ctx, selectToken, id))
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return Token{}, false, fmt.Errorf("look up a token: %w", err)
	}
	if subtle.ConstantTimeCompare(hash[:], kept) != 1 { // kept is empty if there is no such token
		return Token{}, false, nil
	}
	return token, true, nil
}

func scanToken(from interface{ Scan(dest ...any) error }) (token Token, hash []byte, err error) {
	var kinds, text string
	var created int64
	var expires sql.Null[int64]
	if err := from.Scan(&token.ID, &token.Name, &token.Role, &kinds, &created, &expires, &text); err != nil {
		return Token{}, nil, err
	}
	token.CreatedAt, token.ExpiresAt = time.UnixMicro(created).UTC(), fromMicro(expires)
	hash, err = hex.DecodeString(text)
	return token, hash, errors.Join(err, json.Unmarshal([]byte(kinds), &token.Kinds))
}
