package bedhttp

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

const maxKey = 255

// quoted is a String of RFC 8941 (Structured Field Values), with parameters. The draft defines no
// parameters, and the RFC says to ignore unknown ones. plain is a key without quotes. It excludes
// a comma, because a proxy joins two header lines with one.
var (
	quoted = regexp.MustCompile(`^"((?:[ !#-\[\]-~]|\\["\\])*)"(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:-?[0-9]{1,15}|-?[0-9]{1,12}\.[0-9]{1,3}|` +
		`"(?:[ !#-\[\]-~]|\\["\\])*"|[A-Za-z*][!#$%&'*+.^_` + "`" + `|~0-9A-Za-z:/-]*|:[A-Za-z0-9+/=]*:|\?[01]))?)*$`)
	plain = regexp.MustCompile(`^[ !#-+\--~][ -+\--~]*$`)
)

// keyOf reads a key from the header name. given means that there is such a header, however malformed.
// The error is for the client.
func keyOf(h http.Header, name string) (key string, given bool, err error) {
	lines := h[name]
	switch {
	case len(lines) == 0:
		return "", false, nil
	case len(lines) > 1:
		return "", true, errors.New("The " + name + " header is sent more than once.") //nolint:staticcheck // a sentence for the client
	}
	text := strings.Trim(lines[0], " \t")
	if parts := quoted.FindStringSubmatch(text); parts != nil {
		key = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(parts[1])
	} else if plain.MatchString(text) {
		key = text
	} else if text != "" {
		return "", true, errors.New("The " + name + " header is neither a string of RFC 8941 (\"…\") nor a plain key of printable ASCII characters without commas.") //nolint:staticcheck // see above
	}
	switch {
	case key == "":
		return "", true, errors.New("The " + name + " header is empty.") //nolint:staticcheck // see above
	case len(key) > maxKey:
		return "", true, errors.New("The key of " + name + " is longer than 255 characters.") //nolint:staticcheck // see above
	}
	return key, true, nil
}

// scoped is the key of a client's key.
func scoped(service, client, key string) string {
	return "http-" + digest([]byte(service), []byte(client), []byte(key))
}

// fingerprint identifies a request by method, path, query, content type and body. It omits
// differences between two builds of a request by a client, and those after a router's redirect. If
// a form was parsed before, and so read, it uses the parsed form.
func fingerprint(r *http.Request, body []byte) string {
	where := r.URL.EscapedPath()
	if sent, _, _ := strings.Cut(r.RequestURI, "?"); strings.HasPrefix(sent, "/") {
		where = sent // http.StripPrefix shortens the other
	}
	query := r.URL.RawQuery
	if values, err := url.ParseQuery(query); err == nil {
		query = values.Encode() // in the order of the names
	}
	texts := [][]byte{[]byte(r.Method), []byte(path.Clean(where)), []byte(query)}
	if len(body) == 0 && (len(r.PostForm) > 0 || r.MultipartForm != nil) {
		return digest(append(texts, parsed(r)...)...)
	}
	for _, v := range r.Header["Content-Type"] {
		kind, boundary := contentType(v)
		if texts = append(texts, []byte(kind)); boundary != "" {
			body = bytes.ReplaceAll(append([]byte("\r\n"), body...), []byte("\r\n--"+boundary), []byte("\r\n--"))
		}
	}
	return digest(append(texts, body)...)
}

// contentType returns a content type in one spelling, without a boundary or the default charset.
func contentType(text string) (kind, boundary string) {
	kind, params, err := mime.ParseMediaType(text)
	if err != nil {
		return text, ""
	}
	boundary = params["boundary"]
	delete(params, "boundary")
	if params["charset"] = strings.ToLower(params["charset"]); params["charset"] == "" || params["charset"] == "utf-8" {
		delete(params, "charset")
	}
	return mime.FormatMediaType(kind, params), boundary
}

// parsed returns a parsed form, without the boundary of its parts.
func parsed(r *http.Request) [][]byte {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	texts := [][]byte{[]byte(kind), []byte(r.PostForm.Encode())}
	if r.MultipartForm == nil {
		return texts
	}
	texts = append(texts, []byte(url.Values(r.MultipartForm.Value).Encode()))
	for _, name := range slices.Sorted(maps.Keys(r.MultipartForm.File)) {
		for _, file := range r.MultipartForm.File[name] {
			h := sha256.New()
			if f, err := file.Open(); err == nil {
				_, _ = io.Copy(h, f)
				_ = f.Close()
			}
			texts = append(texts, []byte(name), []byte(file.Filename), []byte(file.Header.Get("Content-Type")), h.Sum(nil))
		}
	}
	return texts
}

// fingerprintOf asks Config.Fingerprint with a request of its own to read.
func (m *middleware) fingerprintOf(r *http.Request, body []byte) string {
	if m.Fingerprint == nil {
		return fingerprint(r, body)
	}
	q := r.WithContext(r.Context())
	q.Body = io.NopCloser(bytes.NewReader(body))
	defer func() {
		if q.MultipartForm != nil && r.MultipartForm == nil {
			_ = q.MultipartForm.RemoveAll()
		}
	}()
	return digest([]byte("Config.Fingerprint"), []byte(m.Fingerprint(q, body)))
}

// digest is the same for no two rows of texts: each has its length before it.
func digest(texts ...[]byte) string {
	h := sha256.New()
	for _, text := range texts {
		_ = binary.Write(h, binary.BigEndian, int64(len(text)))
		_, _ = h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil))
}
