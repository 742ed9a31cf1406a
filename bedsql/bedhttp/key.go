package bedhttp

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/http"
	"regexp"
	"strings"
)

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotent-Replayed"
	maxKey         = 255
)

// quoted is a String of RFC 8941 (Structured Field Values), with parameters, of which the
// draft knows none: they are ignored, as that RFC says. plain is a key as it is without
// quotes; a comma would be two header lines that a proxy has joined.
var (
	quoted = regexp.MustCompile(`^"((?:[ !#-\[\]-~]|\\["\\])*)"(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:-?[0-9]{1,15}|-?[0-9]{1,12}\.[0-9]{1,3}|` +
		`"(?:[ !#-\[\]-~]|\\["\\])*"|[A-Za-z*][!#$%&'*+.^_` + "`" + `|~0-9A-Za-z:/-]*|:[A-Za-z0-9+/=]*:|\?[01]))?)*$`)
	plain = regexp.MustCompile(`^[ !#-+\--~][ -+\--~]*$`)
)

// keyOf reads the key of a request; given: there is one, or what should be one. The
// error is for the client.
func keyOf(h http.Header) (key string, given bool, err error) {
	lines := h[keyHeader]
	switch {
	case len(lines) == 0:
		return "", false, nil
	case len(lines) > 1:
		return "", true, errors.New("The Idempotency-Key header is sent more than once.") //nolint:staticcheck // a sentence for the client
	}
	text := strings.Trim(lines[0], " \t")
	if parts := quoted.FindStringSubmatch(text); parts != nil {
		key = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(parts[1])
	} else if plain.MatchString(text) {
		key = text
	} else if text != "" {
		return "", true, errors.New("The Idempotency-Key header is neither a string of RFC 8941 (\"…\") nor a plain key of printable ASCII characters without commas.") //nolint:staticcheck // see above
	}
	switch {
	case key == "":
		return "", true, errors.New("The Idempotency-Key header is empty.") //nolint:staticcheck // see above
	case len(key) > maxKey:
		return "", true, errors.New("The Idempotency-Key is longer than 255 characters.") //nolint:staticcheck // see above
	}
	return key, true, nil
}

// scoped is the key of a client's key.
func scoped(client, key string) string { return "http-" + digest([]byte(client), []byte(key)) }

// fingerprint says what the same request means: method, path, query, content type and
// body.
func fingerprint(r *http.Request, body []byte) string {
	path := r.URL.EscapedPath()
	if sent, _, _ := strings.Cut(r.RequestURI, "?"); strings.HasPrefix(sent, "/") {
		path = sent // http.StripPrefix shortens the other
	}
	texts := [][]byte{[]byte(r.Method), []byte(path), []byte(r.URL.RawQuery), body}
	for _, v := range r.Header["Content-Type"] {
		texts = append(texts, []byte(v))
	}
	return digest(texts...)
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
