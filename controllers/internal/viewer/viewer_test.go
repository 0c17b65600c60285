package viewer

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func get(t *testing.T, target string) *http.Response {
	t.Helper()
	rec := httptest.NewRecorder()
	Page(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
	return rec.Result()
}

// TestPageLoadsNothingFromElsewhere, and everything that it loads is there.
func TestPageLoadsNothingFromElsewhere(t *testing.T) {
	body, err := io.ReadAll(get(t, "/docs").Body)
	require.NoError(t, err)
	links := regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(string(body), -1)
	require.Len(t, links, 4)
	for _, l := range links {
		if l[1] == "data:," {
			continue
		}
		require.Contains(t, Paths, "/"+l[1])
	}
	for _, p := range Paths {
		resp := get(t, p)
		require.Equal(t, http.StatusOK, resp.StatusCode, p)
		require.NotEmpty(t, resp.Header.Get("Content-Type"), p)
		require.Contains(t, resp.Header.Get("Content-Security-Policy"), "default-src 'none'", p)
	}
	require.Equal(t, http.StatusNotFound, get(t, "/docs/viewer.go").StatusCode)
}

// TestViewerIsWhatNpmDelivers: the sums in viewer.go are those of the package.
func TestViewerIsWhatNpmDelivers(t *testing.T) {
	source, err := os.ReadFile("viewer.go")
	require.NoError(t, err)
	for _, name := range []string{"swagger-ui-bundle.js", "swagger-ui.css"} {
		resp := get(t, "/docs/"+name)
		require.Equal(t, "gzip", resp.Header.Get("Content-Encoding"))
		z, err := gzip.NewReader(resp.Body)
		require.NoError(t, err)
		sum := sha256.New()
		_, err = io.Copy(sum, z)
		require.NoError(t, err)
		require.Contains(t, string(source), hex.EncodeToString(sum.Sum(nil))+"  "+name)
	}
}
