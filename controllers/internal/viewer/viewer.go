// Package viewer shows the description of the API in a browser, and tries its operations out. Nothing is loaded from
// elsewhere: it embeds Swagger UI (swagger-ui-dist 5.35.0 from npm; its terms are in LICENSE, NOTICE and
// LICENSES-bundled.txt).
package viewer

import (
	"bytes"
	"embed"
	"net/http"
	"path"
	"strings"
	"time"
)

// SHA-256 of what is in the compressed files, as npm delivers it:
//
//	e6a898692f2d768e807c3ba4626068a69a2c5dd960dd6c76f3e4d3a3de180af2  swagger-ui-bundle.js
//	5ed08757e53da3e026d6cbecc61fe5d43585c9560b302d534ad56692519a273d  swagger-ui.css
//
//go:embed index.html start.js swagger-ui-bundle.js.gz swagger-ui.css.gz
var files embed.FS

// policy lets the page load from its own server alone. Swagger UI sets styles in the page, and has its icons in it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Paths are what Page serves.
var Paths = []string{"/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css"}

// Page serves the page at /docs and what belongs to it. It shows the description at /openapi.json.
func Page(w http.ResponseWriter, req *http.Request) {
	name := "index.html"
	if req.URL.Path != "/docs" {
		name = path.Base(req.URL.Path)
	}
	data, err := files.ReadFile(name)
	if err != nil {
		name += ".gz"
		data, err = files.ReadFile(name)
	}
	if err != nil {
		http.NotFound(w, req)
		return
	}
	h := w.Header()
	if strings.HasSuffix(name, ".gz") { // every browser takes it
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Type", types[path.Ext(strings.TrimSuffix(name, ".gz"))])
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "max-age=3600")
	http.ServeContent(w, req, name, time.Time{}, bytes.NewReader(data))
}

var types = map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
