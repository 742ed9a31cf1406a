// Package service makes an HTTP service a data source: a call is a statement, CALL, a method and a
// path, with the rest of the request as its parameters.
package service

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sender"
	"github.com/bedsql/bed/internal/sqltext"
)

// Call is a request to a service.
type Call struct {
	// ID is its entry's.
	ID string
	// Key is its Idempotency-Key, the same for all attempts.
	Key string
	// Request marks the key of an application's request. Other keys are the entry's own.
	Request bool
	// Method and Path are its address below the service's base URL; the path is escaped.
	Method, Path string
	// Query is the raw query, without the question mark.
	Query  string
	Header http.Header
	Body   []byte
	// Scoped marks a call of a service with keys: only an answer with Idempotency-Scope counts.
	Scoped bool
	// more are headers of an undo.
	more http.Header
}

// MaxBody is the size of the largest body.
const MaxBody = 1 << 20

// Settings are the settings of calls' entries. No database has them, so no job takes such an entry
// for SQL.
const Settings = "bedCall=1"

// The names of the parameters.
const (
	argID     = "id"
	argQuery  = "query"
	argHeader = "header"
	argBody   = "body"
)

// Statement returns the text and the parameters of a call; the first is its ID. bedsql adds
// the key. An error is Refused.
func (c *Call) Statement() (text string, args []any, err error) {
	if err := c.check(); err != nil {
		return "", nil, sender.Refused(fmt.Errorf("bed: the call was neither logged nor sent: %w", err))
	}
	args = []any{sql.Named(argID, c.ID)}
	if c.Scoped {
		args = append(args, sql.Named(sqltext.CallScoped, true))
	}
	if c.Query != "" {
		args = append(args, sql.Named(argQuery, c.Query))
	}
	if len(c.Header) > 0 {
		text, _ := json.Marshal(c.Header) // check wants UTF-8
		args = append(args, sql.Named(argHeader, string(text)))
	}
	if len(c.Body) > 0 {
		args = append(args, sql.Named(argBody, sender.Text(c.Body)))
	}
	return sqltext.Call + c.Method + " " + c.Path, args, nil
}

// read is the reverse of Statement.
func read(text string, args []driver.NamedValue) (*Call, error) {
	address, ok := strings.CutPrefix(text, sqltext.Call)
	method, path, found := strings.Cut(address, " ")
	if !ok || !found {
		return nil, sender.Refused(errors.New("bed: the data source is an HTTP service, and the text is not CALL, a method and a path"))
	}
	c := &Call{Method: method, Path: path}
	malformed := errors.New("bed: the header of the call is not a JSON object of lists of texts")
	if err := sender.Read(args, "call", malformed, map[string]any{
		argID: &c.ID, sqltext.CallKey: &c.Key, argQuery: &c.Query, argHeader: &c.Header, argBody: &c.Body,
		sqltext.CallScoped: &c.Scoped, sqltext.CallRequest: &c.Request,
	}); err != nil {
		return nil, err
	}
	if c.ID == "" || c.Key == "" {
		return nil, sender.Refused(errors.New("bed: the call has no parameter id, or no key"))
	}
	if err := c.check(); err != nil {
		return nil, sender.Refused(fmt.Errorf("bed: the call cannot be sent: %w", err))
	}
	return c, nil
}

// check returns an error for a call that may not be sent.
func (c *Call) check() error {
	if !slices.Contains([]string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, c.Method) {
		return fmt.Errorf("its method is %q, but a call that is repeated until it arrives is POST, PUT, PATCH or DELETE", c.Method)
	}
	if err := checkPath(c.Path); err != nil {
		return err
	}
	if _, err := url.ParseQuery(c.Query); err != nil || strings.ContainsFunc(c.Query, isUnsafe) || strings.Contains(c.Query, "#") {
		return errors.New("its query is malformed")
	}
	for name, values := range c.Header {
		if name == "" || strings.Trim(name, tokens) != "" || slices.ContainsFunc(values, func(v string) bool {
			return strings.ContainsFunc(v, func(r rune) bool { return r != '\t' && isControl(r) })
		}) {
			return errors.New("it has a malformed header")
		}
		if isOwn(name) {
			return fmt.Errorf("the header %s is set when the call is sent, and is never logged: add credentials by the transport of the client, or the job's configuration", http.CanonicalHeaderKey(name))
		}
	}
	if len(c.Body) > MaxBody {
		return fmt.Errorf("its body has %d bytes, and %d are the most", len(c.Body), MaxBody)
	}
	return nil
}

// checkPath refuses paths with several readings.
func checkPath(path string) error {
	plain, err := url.PathUnescape(path)
	switch {
	case err != nil, !strings.HasPrefix(path, "/"), strings.ContainsAny(path, "?#"), strings.ContainsFunc(path, isUnsafe):
		return errors.New("its path is malformed: it begins with / and is escaped")
	case strings.Contains(plain, "//"), strings.ContainsFunc(plain, isControl), strings.Contains(plain, `\`):
		return errors.New("its path has an empty segment, a backslash or a control character, which servers read differently")
	}
	for segment := range strings.SplitSeq(plain, "/") {
		if segment == "." || segment == ".." {
			return errors.New("its path has a segment . or .., which leads elsewhere")
		}
	}
	return nil
}

// tokens are the characters of a header's name.
const tokens = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

func isControl(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }

// isUnsafe reports whether r must be escaped in an address.
func isUnsafe(r rune) bool { return isControl(r) || r == ' ' || r > 0x7e }

// own are the headers of a connection, an account or a key.
var own = []string{"Authorization", "Connection", "Content-Length", "Cookie", "Cookie2", "Expect", "Forwarded", "Host", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

func isOwn(name string) bool {
	name = http.CanonicalHeaderKey(name)
	return slices.Contains(own, name) || strings.HasPrefix(name, "Proxy-") || strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "Idempotency-")
}

// Configurable reports whether the job's configuration may set a header for each call.
func Configurable(name string) bool {
	return name != "" && strings.Trim(name, tokens) == "" && (!isOwn(name) || name == "Authorization" || name == "Cookie")
}

// amend lets an operator change the query and the body of a call. The service knows the old key by the
// old request, so the call gets a new key.
func amend(old, to dialect.Call) ([]driver.NamedValue, error) {
	c, err := read(to.SQL, to.Args)
	if err != nil {
		return nil, err
	}
	was, err := read(old.SQL, old.Args)
	switch {
	case err != nil: // it was never sent
		return to.Args, nil
	case was.ID != c.ID || was.Key != c.Key || old.SQL != to.SQL || was.Scoped != c.Scoped || was.Request != c.Request || !maps.EqualFunc(was.Header, c.Header, slices.Equal):
		return nil, errors.New("only the query and the body of a call can be amended: the text and the other parameters stay as they are")
	case was.Query == c.Query && bytes.Equal(was.Body, c.Body):
		return to.Args, nil
	case was.Request:
		return nil, errors.New("the call was sent under the idempotency key of a request, which names this call alone: discard it, and have the application send a new request")
	}
	args := slices.Clone(to.Args)
	for i := range args {
		if args[i].Name == sqltext.CallKey {
			args[i].Value = fmt.Sprintf("bed-%x", sha256.Sum256(entry.Apart(was.Key, c.Query, string(c.Body))))
		}
	}
	return args, nil
}
