package apiclient_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

type doc = map[string]any

// transport answers requests without a network.
type transport func(r *http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// blue is an object as the API answers with it.
const blue = `{"name":"blue","uid":"u"}`

// answers makes a transport that gives the same answer to every request. header is in pairs.
func answers(status int, body string, header ...string) transport {
	return func(r *http.Request) (*http.Response, error) {
		h := http.Header{}
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}
}

func client(t *testing.T, answer transport) *apiclient.Client[doc, doc] {
	t.Helper()
	c, err := apiclient.New[doc, doc](apiclient.Config{URL: "http://user:secret@api/", HTTP: &http.Client{Transport: answer}, Tries: 1}, "widgets")
	require.NoError(t, err)
	return c
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	for url, want := range map[string]string{
		"":                          `Config.URL ""`,
		"127.0.0.1:8080":            `Config.URL "127.0.0.1:8080"`,
		"api:8080":                  `Config.URL "api:8080"`,
		"ftp://api":                 `Config.URL "ftp://api"`,
		"http://":                   `Config.URL "http://"`,
		"http://api?x=1":            `Config.URL "http://api?x=1"`,
		"http://api#x":              `Config.URL "http://api#x"`,
		"ftp://user:secret@api":     `Config.URL "…@api"`,
		"user:secret@api:8080":      `Config.URL "…@api:8080"`,
		"http://user:sec%ret@api:x": `Config.URL "…@api:x"`,
	} {
		_, err := apiclient.New[doc, doc](apiclient.Config{URL: url}, "widgets")
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "secret")
	}
	_, err := apiclient.New[doc, doc](apiclient.Config{URL: "https://api"}, "Widgets")
	require.ErrorContains(t, err, `kind "Widgets"`)
}

// TestDefaultTransportMayBeReplaced: instrumentation does that, with a type of its own.
func TestDefaultTransportMayBeReplaced(t *testing.T) {
	before := http.DefaultTransport
	t.Cleanup(func() { http.DefaultTransport = before })
	http.DefaultTransport = answers(http.StatusOK, "{}")
	_, err := apiclient.New[doc, doc](apiclient.Config{URL: "http://api"}, "widgets")
	require.NoError(t, err)
}

func TestTimeoutIsADeadline(t *testing.T) {
	const timeout = 3 * time.Second
	for name, silent := range map[string]transport{
		"no answer": func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		},
		"half an answer": func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(stalled{r.Context()}), Request: r}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, err := apiclient.New[doc, doc](apiclient.Config{URL: "http://api", HTTP: &http.Client{Transport: silent}, Timeout: timeout, Tries: 1}, "widgets")
				require.NoError(t, err)
				start := time.Now()
				_, err = c.Get(t.Context(), "blue")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, err, apiclient.ErrUnavailable)
				require.ErrorContains(t, err, "get widgets/blue: ")
				require.Equal(t, timeout, time.Since(start))
			})
		})
	}
}

// stalled is a body that never comes.
type stalled struct{ ctx context.Context }

func (s stalled) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

func TestNetworkErrorIsUnavailableAndKeepsTheSecret(t *testing.T) {
	down := errors.New("connection refused")
	var user, password string
	c := client(t, func(r *http.Request) (*http.Response, error) {
		user, password, _ = r.BasicAuth()
		return nil, down
	})
	_, err := c.Put(t.Context(), "blue", doc{})
	require.ErrorIs(t, err, apiclient.ErrUnavailable)
	require.ErrorIs(t, err, down)
	require.EqualError(t, err, "put widgets/blue: unavailable: connection refused")
	require.Equal(t, "user:secret", user+":"+password, "credentials in the URL are sent")
}

// TestAnswersOfOthers: what stands between a client and its API answers for it, and must not be taken for it.
func TestAnswersOfOthers(t *testing.T) {
	t.Run("a 502 without a problem is unavailable", func(t *testing.T) {
		_, err := client(t, answers(502, "<h1>Bad Gateway</h1>", "Content-Type", "text/html")).Get(t.Context(), "blue")
		require.ErrorIs(t, err, apiclient.ErrUnavailable)
		require.EqualError(t, err, "get widgets/blue: Bad Gateway")
	})
	t.Run("a 404 of a proxy is not a deletion", func(t *testing.T) {
		_, err := client(t, answers(404, "default backend - 404", "Content-Type", "text/plain")).Get(t.Context(), "blue")
		require.Error(t, err)
		require.NotErrorIs(t, err, apiclient.ErrNotFound)
	})
	t.Run("a redirect does not turn a write into a read", func(t *testing.T) {
		for _, status := range []int{301, 302, 303, 307, 308} {
			var sent int
			c := client(t, func(r *http.Request) (*http.Response, error) {
				if sent++; r.URL.Scheme == "https" {
					return answers(200, blue)(r)
				}
				return answers(status, "", "Location", "https://api"+r.URL.Path)(r)
			})
			_, err := c.Put(t.Context(), "blue", doc{})
			require.ErrorContains(t, err, "put widgets/blue: unexpected response: "+http.StatusText(status))
			require.Equal(t, 1, sent)
		}
	})
	t.Run("a page in HTML is not an object", func(t *testing.T) {
		_, err := client(t, answers(200, "<h1>Log in</h1>", "Content-Type", "text/html")).Get(t.Context(), "blue")
		require.ErrorContains(t, err, "get widgets/blue: unexpected response: status 200 with a body that is not JSON (is a proxy in between?)")
		require.ErrorIs(t, err, apiclient.ErrUnexpectedResponse)
	})
}

// TestAnswersThatAreNotOfTheObject are a proxy's: any JSON object would do for one, and no body would mean that it is gone.
func TestAnswersThatAreNotOfTheObject(t *testing.T) {
	for body, status := range map[string]int{``: 204, `{}`: 200, `{"health":"ok"}`: 200, `{"name":"red","uid":"u"}`: 200} {
		_, err := client(t, answers(status, body)).Get(t.Context(), "blue")
		require.ErrorIs(t, err, apiclient.ErrUnexpectedResponse, body)
		_, err = client(t, answers(status, body)).Put(t.Context(), "blue", doc{})
		require.ErrorIs(t, err, apiclient.ErrUnexpectedResponse, body)
	}
	_, err := client(t, answers(400, "Client sent an HTTP request to an HTTPS server.\n", "Content-Type", "text/plain")).Get(t.Context(), "blue")
	require.ErrorContains(t, err, "begin Config.URL with https://")
}

func TestSentinels(t *testing.T) {
	all := []error{
		apiclient.ErrNotFound, apiclient.ErrExists, apiclient.ErrConflict, apiclient.ErrFenced, apiclient.ErrInvalid, apiclient.ErrUnavailable, apiclient.ErrSealed, apiclient.ErrUnexpectedResponse,
	}
	for _, c := range []struct {
		status int
		typ    string
		want   error // nil: none of them
	}{
		{404, "/problems/not-found", apiclient.ErrNotFound},
		{404, "https://other.example/x/not-found", apiclient.ErrNotFound},
		{404, "not-found", apiclient.ErrNotFound},
		{404, "", apiclient.ErrUnexpectedResponse},
		{404, "about:blank", apiclient.ErrUnexpectedResponse},
		{409, "/problems/exists", apiclient.ErrExists},
		{409, "/problems/conflict", apiclient.ErrConflict},
		{412, "", apiclient.ErrUnexpectedResponse},
		{409, "/problems/fenced", apiclient.ErrFenced},
		{409, "", apiclient.ErrUnexpectedResponse},
		{400, "/problems/invalid", apiclient.ErrInvalid},
		{413, "/problems/invalid", apiclient.ErrInvalid},
		{415, "/problems/invalid", apiclient.ErrInvalid},
		{422, "/problems/invalid", apiclient.ErrInvalid},
		{400, "", apiclient.ErrUnexpectedResponse},
		{413, "", apiclient.ErrUnexpectedResponse},
		{415, "", apiclient.ErrUnexpectedResponse},
		{422, "https://other.example/x/unprocessable", apiclient.ErrUnexpectedResponse},
		{429, "", apiclient.ErrUnavailable},
		{500, "", apiclient.ErrUnavailable},
		{503, "/problems/unavailable", apiclient.ErrUnavailable},
		{500, "/problems/sealed", apiclient.ErrSealed},
		{401, "", nil},
		{403, "", nil},
		{405, "", apiclient.ErrUnexpectedResponse},
	} {
		body := fmt.Sprintf(`{"type":%q,"status":200,"detail":"the detail"}`, c.typ) // the status that counts is HTTP's
		_, err := client(t, answers(c.status, body, "Content-Type", "application/problem+json; charset=utf-8")).Get(t.Context(), "blue")
		for _, sentinel := range all {
			require.Equal(t, sentinel == c.want, errors.Is(err, sentinel), "%d %q is %v", c.status, c.typ, sentinel)
		}
		var p *apiclient.Problem
		require.ErrorAs(t, err, &p)
		require.Equal(t, c.status, p.Status)
		want := "get widgets/blue: the detail"
		if c.want == apiclient.ErrUnexpectedResponse {
			want = "get widgets/blue: unexpected response: the detail (is Config.URL the base URL of the API, without /v1? is a proxy in between?)"
		}
		require.EqualError(t, err, want)
	}
}

func TestProblemSaysWhatItKnows(t *testing.T) {
	require.Equal(t, "HTTP status 418", (&apiclient.Problem{Status: 418}).Error())
	require.Equal(t, "I'm a teapot", (&apiclient.Problem{Status: 418, Title: "I'm a teapot"}).Error())
	require.Equal(t, "the request is wrong; body.spec: want a JSON object; query.limit: want 1 to 500", (&apiclient.Problem{
		Title: "Unprocessable Entity", Detail: "the request is wrong", Errors: []apiclient.FieldError{
			{Location: "body.spec", Message: "want a JSON object"}, {Location: "query.limit", Message: "want 1 to 500"},
		},
	}).Error())
}

// TestNamesAreNotPaths: what is no name is refused before it becomes part of a path, where it would mean something else.
func TestNamesAreNotPaths(t *testing.T) {
	c := client(t, func(r *http.Request) (*http.Response, error) {
		t.Errorf("sent %s %s", r.Method, r.URL)
		return answers(200, "{}")(r)
	})
	for _, name := range []string{"", ".", "..", "a/status", "../gadgets/a", "a?b", "a#b", "a%2Fb", "A"} {
		for _, call := range []func(context.Context, string) (*apiclient.Object[doc, doc], error){
			c.Get, c.Delete, c.Retry, c.Pause, c.Resume,
			func(ctx context.Context, name string) (*apiclient.Object[doc, doc], error) {
				return c.Create(ctx, name, doc{})
			},
			func(ctx context.Context, name string) (*apiclient.Object[doc, doc], error) {
				return c.Put(ctx, name, doc{})
			},
			func(ctx context.Context, name string) (*apiclient.Object[doc, doc], error) {
				return c.PatchStatus(ctx, name, apiclient.StatusPatch{})
			},
		} {
			_, err := call(t.Context(), name)
			require.ErrorIs(t, err, apiclient.ErrInvalid)
			require.ErrorContains(t, err, fmt.Sprintf("name %q", name))
		}
	}
}

func TestOptionsTravel(t *testing.T) {
	var sent string
	c := client(t, func(r *http.Request) (*http.Response, error) {
		body, _ := io.ReadAll(r.Body)
		sent = fmt.Sprintf("%s %s If-Match:%s %s", r.Method, r.URL.Path, r.Header.Get("If-Match"), body)
		return answers(200, blue)(r)
	})
	_, err := c.Put(t.Context(), "blue", doc{"size": 3}, apiclient.IfRevision(7), apiclient.WithLabels(map[string]string{"a": "b"}))
	require.NoError(t, err)
	require.Equal(t, `PUT /v1/objects/widgets/blue If-Match:"7" {"labels":{"a":"b"},"spec":{"size":3}}`, sent)
}

func TestListsStopWhenTheirReaderDoesAndAtAnError(t *testing.T) {
	var pages int
	c := client(t, func(r *http.Request) (*http.Response, error) {
		if pages++; pages > 2 {
			return answers(503, "")(r)
		}
		return answers(200, fmt.Sprintf(`{"items":[{"name":"a%d"},{"name":"b%d"}],"next":"%d"}`, pages, pages, pages))(r)
	})
	var got []string
	for o, err := range c.All(t.Context()) {
		if err != nil {
			require.ErrorIs(t, err, apiclient.ErrUnavailable)
			require.ErrorContains(t, err, "list widgets: ")
			got = append(got, "error")
			continue // the list has ended: nothing follows
		}
		got = append(got, o.Name)
	}
	require.Equal(t, []string{"a1", "b1", "a2", "b2", "error"}, got)

	t.Run("what does not fit is named, and the next one follows", func(t *testing.T) {
		c := client(t, answers(200, `{"items":[{"name":"a"},{"name":"b","labels":5},{"name":"c"}]}`))
		var got []string
		for o, err := range c.All(t.Context()) {
			if err != nil {
				require.ErrorContains(t, err, "list widgets: decode b: ")
				got = append(got, "error")
				continue
			}
			got = append(got, o.Name)
		}
		require.Equal(t, []string{"a", "error", "c"}, got)
	})

	pages = 0
	for range c.Unsettled(t.Context(), time.Minute) {
		break
	}
	require.Equal(t, 1, pages)
}
