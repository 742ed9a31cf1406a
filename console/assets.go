package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
)

// files are what pages are made of. Those under vendor are others' work, with
// their licences beside them.
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

func (s service) asset(w http.ResponseWriter, r *http.Request, _ person) error {
	name := path.Clean("/" + r.PathValue("file"))
	kind := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}[path.Ext(name)]
	if kind == "" && strings.HasSuffix(name, ".LICENSE") {
		kind = mime.FormatMediaType("text/plain", map[string]string{"charset": "utf-8"})
	}
	b, err := files.ReadFile("assets" + name)
	if err != nil || kind == "" {
		return errNoPage
	}
	w.Header().Set("Content-Type", kind)
	if r.URL.Query().Get("v") == version {
		w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
	}
	_, _ = w.Write(b)
	return nil
}

func (s service) openapi(w http.ResponseWriter, _ *http.Request, _ person) error {
	b, err := files.ReadFile("openapi.json")
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b)
	return nil
}
