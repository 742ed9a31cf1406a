package bedhttp

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bedsql/bed/internal/httpkey"
)

type middleware struct {
	Config
	headers []string // that are kept
	expiry  string   // a sentence for the client
	hours   hours

	retention time.Duration
	home      *home // of DB
}

// request is the middleware's part of a handler's context.
type request struct {
	m    *middleware
	tx   *sql.Tx
	key  string
	used atomic.Bool // the handler has asked for tx
}

type requestKey struct{}

// Tx is the request's local transaction on Config.DB. Its rows commit together with the response,
// after the handler has returned. Do not call Commit on it; after Rollback a 4xx is kept alone.
// nil means that the request has no key.
//
// You may make a soft transaction with it: bedsql.Begin(ctx, bedsql.WithTx(bedhttp.Tx(ctx))). The
// middleware calls its End after the COMMIT.
func Tx(ctx context.Context) *sql.Tx {
	if q, ok := ctx.Value(requestKey{}).(*request); ok {
		q.used.Store(true)
		return q.tx
	}
	return nil
}

// Key is the request's Idempotency-Key, as the client sent it and without quotes. It is "" if the
// request has no key, or the middleware ignores it.
func Key(ctx context.Context) string {
	if q, ok := ctx.Value(requestKey{}).(*request); ok {
		return q.key
	}
	return ""
}

func (q *request) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, requestKey{}, q)
}

// handle runs next, under a key if the request has one.
func (m *middleware) handle(w http.ResponseWriter, r *http.Request, next http.Handler) (*problem, error) {
	key, given, err := keyOf(r.Header, httpkey.Key)
	under := Key(r.Context()) != ""
	undo, bad := m.undoOf(r, key)
	switch {
	case bad != nil:
		return bad, nil
	case undo == nil && (!slices.Contains(m.Methods, r.Method) || under || !given && !m.Required):
		q := r
		if !under {
			q = r.WithContext((&request{m: m}).in(r.Context()))
		}
		defer handOver(q, r)
		next.ServeHTTP(w, q)
		return nil, nil
	case !given:
		return &missing, nil
	case err != nil:
		return malformed.because(err.Error()), nil
	}
	client := m.Client(r)
	if client == "" {
		return &noClient, nil
	}
	leave, ok := enter(m.DB, m.Service, client)
	if !ok {
		return &crowded, nil
	}
	defer leave()
	wait, cancel := context.WithTimeout(r.Context(), m.Wait)
	home, err := m.home.of(wait, m.DB)
	cancel()
	if err != nil {
		return notBegun(err, false), err
	}
	x := &exchange{middleware: m, w: w, r: r, next: next, client: client, given: key, key: scoped(m.Service, client, key), undo: undo, scope: m.scopeIn(home, client)}
	w.Header().Set(httpkey.Scope, x.scope)
	if meant := r.Header[httpkey.Scope]; undo == nil && len(meant) > 0 && !slices.Equal(meant, []string{x.scope}) {
		return &otherScope, nil
	}
	body, p, err := m.body(r)
	if err != nil {
		return p, err
	}
	if x.body, x.fingerprint = body, m.fingerprintOf(r, body); undo != nil {
		undo.Key = scoped(m.Service, client, undo.given)
		x.fingerprint = digest([]byte(httpkey.Undoes), []byte(undo.given), []byte(x.fingerprint))
	}
	return x.run()
}

// handOver copies the results of the inner request to the outer one: the files of a form, which
// the server removes, and the pattern of a router with its values.
func handOver(from, to *http.Request) {
	if to.MultipartForm == nil {
		to.MultipartForm = from.MultipartForm
	}
	if to.Pattern = from.Pattern; from == to {
		return
	}
	for rest := from.Pattern; ; {
		_, after, found := strings.Cut(rest, "{")
		name, tail, closed := strings.Cut(after, "}")
		if !found || !closed {
			return
		}
		if name, _, _ = strings.Cut(strings.TrimSuffix(name, "..."), ":"); name != "$" {
			to.SetPathValue(name, from.PathValue(name))
		}
		rest = tail
	}
}

var errRead = errors.New("bedhttp: the request's body was read before it reached the middleware, which could take it for another request: " +
	"have whatever reads it put it back, or put that behind the middleware")

var errBodyLarge = errors.New("bedhttp: the request's body is larger than Config.MaxBody, or than http.MaxBytesReader lets it be")

// body reads the request's body as it arrives. On an error it returns the problem to answer with.
func (m *middleware) body(r *http.Request) ([]byte, *problem, error) {
	if r.Body == nil {
		return nil, nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, m.MaxBody+1))
	var limit *http.MaxBytesError
	switch {
	case errors.As(err, &limit), int64(len(body)) > m.MaxBody:
		return nil, &bodyLarge, errBodyLarge
	case err != nil:
		return nil, &bodyBroken, err
	case len(r.PostForm) == 0 && r.MultipartForm == nil && r.ContentLength > int64(len(body)) && fmt.Sprintf("%T", r.Body) == "*http.body":
		return nil, &broken, errRead // the server's own, of which a part is gone
	}
	return body, nil, nil
}
