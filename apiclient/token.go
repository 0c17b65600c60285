package apiclient

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// TokenSource gives the bearer token of a request. It is called for each one, from many goroutines, so one that fetches
// tokens from elsewhere keeps the current one until it is about to expire. Its errors are wrapped with [ErrUnavailable]; they
// must not hold secrets.
type TokenSource func(ctx context.Context) (string, error)

// StaticToken is a token that stays the same.
func StaticToken(token string) TokenSource {
	return func(context.Context) (string, error) { return token, nil }
}

// TokenFile is the token in a file, without the white space around it. The file is read for each request, so that it can be
// replaced while the program runs.
func TokenFile(path string) TokenSource {
	return func(context.Context) (string, error) {
		data, err := os.ReadFile(path) //nolint:gosec // which file is what the caller says
		return strings.TrimSpace(string(data)), err
	}
}

// authorize puts the token into a request. Its errors name no part of it.
func (s TokenSource) authorize(ctx context.Context, req *http.Request) error {
	if s == nil {
		return nil
	}
	token, err := s(ctx)
	if err != nil {
		return fmt.Errorf("%w: get the token: %w", ErrUnavailable, withoutURL(err))
	}
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("%w: the token source gave no token, or one with characters that a token cannot have", ErrUnauthorized)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	return nil
}
