package console

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"net/http"
	"path"
	"time"
)

// readyWithin is how long /readyz waits for the log.
const readyWithin = 5 * time.Second

func (s *site) readyz(in *input) (any, error) {
	if reachable(in.Context(), s.ping, readyWithin) {
		return plain(http.StatusOK, "ok"), nil
	}
	return plain(http.StatusServiceUnavailable, "the transaction log cannot be reached"), nil
}

// reachable reports whether ping succeeds in time.
func reachable(ctx context.Context, ping func(context.Context) error, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	answered := make(chan error, 1)
	go func() { answered <- ping(ctx) }() // a driver may not look at its context
	select {
	case err := <-answered:
		return err == nil
	case <-ctx.Done():
		return false
	}
}

func (s *site) metrics(*input) (any, error) {
	if s.cfg.Metrics == nil {
		return nil, errNoPage
	}
	return s.cfg.Metrics, nil
}

func plain(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text + "\n"))
	}
}

// files are the sources of pages. Those under vendor are others' work, with their licences beside
// them.
//
//go:embed assets templates locales openapi.json
var files embed.FS

// version changes when any file does: it is part of their addresses, so that
// browsers can keep them.
var version = func() string {
	sum := sha256.New()
	_ = fs.WalkDir(files, "assets", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			b, _ := files.ReadFile(name)
			sum.Write(b)
		}
		return err
	})
	return hex.EncodeToString(sum.Sum(nil))[:12]
}()

func (s *site) asset(in *input) (any, error) {
	name := "assets/" + in.PathValue("file")
	kind := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", ".LICENSE": "text/plain; charset=utf-8"}[path.Ext(name)]
	b, err := files.ReadFile(name)
	if err != nil || kind == "" {
		return nil, errNoPage
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", kind)
		if r.URL.Query().Get("v") == version {
			w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
		}
		_, _ = w.Write(b)
	}), nil
}

func (s *site) openapi(*input) (any, error) {
	b, err := files.ReadFile("openapi.json")
	return json.RawMessage(b), err
}
