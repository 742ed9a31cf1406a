package bedhttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/httpkey"
)

// response is a response as it is kept.
type response struct {
	Status int `json:"status"`
	// Header holds the allowed headers. Their values may be any bytes, so they cannot be JSON
	// text.
	Header []headerLine `json:"header,omitempty"`
	Body   []byte       `json:"body,omitempty"`
}

type headerLine struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

// keep makes the stored form of a response, with the named headers.
func keep(status int, h http.Header, names []string, body []byte) *response {
	r := &response{Status: status, Body: body}
	for _, name := range append([]string{"Content-Length", httpkey.Undone}, names...) {
		for _, v := range h[name] {
			r.Header = append(r.Header, headerLine{name, []byte(v)})
		}
	}
	return r
}

// size is the number of bytes counted against Config.MaxResponse.
func (r *response) size() (n int) {
	for _, l := range r.Header {
		n += len(l.Name) + len(l.Value)
	}
	return n + len(r.Body)
}

func (r *response) encode() json.RawMessage {
	text, _ := json.Marshal(r) // nothing in it can fail
	return text
}

// is reports whether r equals the stored response.
func (r *response) is(stored json.RawMessage) bool {
	that, err := decode(stored)
	return err == nil && bytes.Equal(that.encode(), r.encode())
}

func decode(text json.RawMessage) (*response, error) {
	r := new(response)
	if err := json.Unmarshal(text, r); err != nil || r.Status < 200 || r.Status > 999 {
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return r, nil
}

var errUnreadable = errors.New("bedhttp: the response kept with the idempotency key cannot be read")

// replay sends a kept response.
func (r *response) replay(w http.ResponseWriter) {
	h := w.Header()
	for _, l := range r.Header {
		h.Del(l.Name)
	}
	for _, l := range r.Header {
		h[l.Name] = append(h[l.Name], string(l.Value))
	}
	h.Set(httpkey.Replayed, "true")
	send(w, r.Status, r.Body)
}

// send sends status and body; the headers are set.
func send(w http.ResponseWriter, status int, body []byte) {
	if _, typed := w.Header()["Content-Type"]; !typed {
		w.Header()["Content-Type"] = nil // it is not guessed: the handler wanted none
	}
	w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = w.Write(body) // if the client is gone, it sends the request again
	}
}

// finish completes the headers of a whole response: a length, a type, and no header about another
// way of sending or of the middleware's own.
func finish(method string, status int, h http.Header, body []byte) []byte {
	own := []string{"Trailer", "Transfer-Encoding", httpkey.Replayed, httpkey.Undone, httpkey.Scope, httpkey.Kept}
	maps.DeleteFunc(h, func(name string, _ []string) bool {
		return strings.HasPrefix(name, http.TrailerPrefix) || slices.Contains(own, name)
	})
	if !hasBody(status) {
		h.Del("Content-Length")
		return nil
	}
	if _, typed := h["Content-Type"]; !typed && len(body) > 0 && h.Get(encoding) == "" {
		h.Set("Content-Type", http.DetectContentType(body))
	}
	if method != http.MethodHead || len(body) > 0 {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	if method == http.MethodHead {
		return nil
	}
	return body
}

func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
