package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

const (
	// hookWithin is how long a hook may take for one call, from dialing to the last byte.
	hookWithin = 5 * time.Second
	// hookItems and hookBytes bound what one call converts: about a page of a list.
	hookItems, hookBytes = objects.MaxLimit, objects.MaxPage
	// hookAnswer bounds what is read of an answer, in bytes.
	hookAnswer = 2 * hookBytes
	// maxURL and maxBundle bound what is stored of a hook, in bytes.
	maxURL, maxBundle = 2048, 256 << 10
)

// webhook converts by asking a server.
type webhook struct {
	kind   string
	url    string
	client *http.Client
}

// newWebhook checks what is said of a hook. It does not connect.
func newWebhook(kind string, c apiclient.Conversion) (*webhook, error) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || len(c.URL) > maxURL || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, errors.New("url: want https://HOST/PATH")
	case u.User != nil || u.Fragment != "":
		return nil, errors.New("url: want one without a user and a fragment: everybody who reads kinds sees it")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return nil, errors.New("url: want https: specs go there; http is for hooks on this machine (127.0.0.1, ::1, localhost)")
	case len(c.CABundle) > maxBundle:
		return nil, fmt.Errorf("caBundle: want up to %d bytes", maxBundle)
	}
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CABundle != "" {
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM([]byte(c.CABundle)) {
			return nil, errors.New("caBundle: want certificates (PEM)")
		}
	}
	return &webhook{kind: kind, url: c.URL, client: &http.Client{
		Timeout: hookWithin,
		// A redirect could lead to where https is not, or to what only this machine reaches.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			TLSClientConfig: trust, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 16, IdleConnTimeout: 90 * time.Second,
			MaxResponseHeaderBytes: 64 << 10, TLSHandshakeTimeout: hookWithin,
		},
	}}, nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

type (
	// hookRequest and hookAnswers are what is said to a hook and by it.
	hookRequest struct {
		Kind  string       `json:"kind"`
		From  string       `json:"from"`
		To    string       `json:"to"`
		Items []conversion `json:"items"`
	}
	hookAnswers struct {
		Items []struct {
			Spec json.RawMessage `json:"spec"`
		} `json:"items"`
	}
)

func (w *webhook) convert(ctx context.Context, from, to string, items []conversion) (specs []json.RawMessage, err error) {
	for len(items) > 0 {
		n, size := 0, 0
		for n < len(items) && n < hookItems && (n == 0 || size < hookBytes) {
			size += len(items[n].Spec) + len(items[n].Current)
			n++
		}
		some, err := w.call(ctx, hookRequest{Kind: w.kind, From: from, To: to, Items: items[:n]})
		if err != nil {
			return nil, err
		}
		specs, items = append(specs, some...), items[n:]
	}
	return specs, nil
}

// call makes one call. What the hook says is never passed on: it may quote specs.
func (w *webhook) call(ctx context.Context, asked hookRequest) ([]json.RawMessage, error) {
	body, err := json.Marshal(asked)
	if err != nil {
		return nil, fmt.Errorf("ask the hook of %s: %w", w.kind, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ask the hook of %s: %w", w.kind, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := w.client.Do(req)
	if err != nil {
		return nil, w.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		busy := resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500
		return nil, &hookError{unavailable: busy, why: fmt.Sprintf("the hook answers %d, want 200", resp.StatusCode)}
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, hookAnswer+1))
	if err != nil {
		return nil, w.unreachable(ctx, err)
	}
	return readAnswers(data, len(asked.Items))
}

// unreachable is the error of a hook that did not answer.
func (w *webhook) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil { // whoever asked has gone, and the hook is not to blame
		return ctx.Err()
	}
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		return &hookError{unavailable: true, why: fmt.Sprintf("the hook did not answer within %s", hookWithin), cause: err}
	}
	return &hookError{unavailable: true, why: "the hook cannot be reached", cause: err}
}

// readAnswers decodes the answer of a hook to so many items.
func readAnswers(data []byte, want int) ([]json.RawMessage, error) {
	if len(data) > hookAnswer {
		return nil, &hookError{why: fmt.Sprintf("the hook answers with more than %d bytes", hookAnswer)}
	}
	var answers hookAnswers
	if json.Unmarshal(data, &answers) != nil {
		return nil, &hookError{why: `the hook does not answer with JSON of the form {"items":[{"spec":{…}}]}`}
	}
	if len(answers.Items) != want {
		return nil, &hookError{why: fmt.Sprintf("the hook answers with %d items, want %d", len(answers.Items), want)}
	}
	specs := make([]json.RawMessage, want)
	for i, a := range answers.Items {
		specs[i] = a.Spec
	}
	return specs, nil
}
