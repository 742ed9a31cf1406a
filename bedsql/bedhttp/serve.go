package bedhttp

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net/http"
)

// middleware is what New makes.
type middleware struct {
	Config
	methods map[string]bool
	headers []string // that are kept
	expiry  string   // a sentence for the client
}

// request is what the context of a handler knows.
type request struct {
	m  *middleware
	tx *sql.Tx
}

type requestKey struct{}

// Tx is the request's local transaction on Config.DB: what it commits, it commits together
// with the response, after the handler has returned. Commit is not to be called on it; after
// Rollback a 4xx is kept alone. nil: the request has no key.
//
// A soft transaction may be made with it: bedsql.Begin(ctx, bedsql.With(bedhttp.Tx(ctx))).
// The middleware calls its End after the COMMIT.
func Tx(ctx context.Context) *sql.Tx {
	if q, ok := ctx.Value(requestKey{}).(*request); ok {
		return q.tx
	}
	return nil
}

func (q *request) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, requestKey{}, q)
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	key, given, err := keyOf(r.Header)
	switch {
	case !m.methods[r.Method], Tx(r.Context()) != nil, !given && !m.Required:
		q := r
		if Tx(r.Context()) == nil {
			q = r.WithContext((&request{m: m}).in(r.Context()))
		}
		defer handOver(q, r)
		next.ServeHTTP(w, q)
		return
	case !given:
		m.answer(w, r, missing, nil)
		return
	case err != nil:
		p := malformed
		p.Detail = err.Error()
		m.answer(w, r, p, nil)
		return
	}
	client := m.Client(r)
	if client == "" {
		m.answer(w, r, noClient, nil)
		return
	}
	body, p, err := m.body(r)
	if err != nil {
		m.answer(w, r, p, err)
		return
	}
	x := &exchange{middleware: m, w: w, r: r, body: body, next: next,
		key: scoped(client, key), fingerprint: fingerprint(r, body)}
	x.run()
}

// handOver leaves the files of a form that the handler has parsed to the server: it removes
// those of the request that it knows.
func handOver(from, to *http.Request) {
	if to.MultipartForm == nil {
		to.MultipartForm = from.MultipartForm
	}
}

var errRead = errors.New("bedhttp: the request's body was read before it reached the middleware, which could take it for another request: " +
	"put whatever parses forms behind it")

var errBodyLarge = errors.New("bedhttp: the request's body is larger than Config.MaxBody, or than http.MaxBytesReader lets it be")

// body reads the request's body, and says how an error is answered.
func (m *middleware) body(r *http.Request) ([]byte, problem, error) {
	if r.ContentLength > m.MaxBody {
		return nil, bodyLarge, errBodyLarge
	}
	if r.PostForm != nil || r.MultipartForm != nil {
		return nil, broken, errRead
	}
	if r.Body == nil {
		return nil, problem{}, nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, m.MaxBody+1))
	var limit *http.MaxBytesError
	switch {
	case errors.As(err, &limit), int64(len(body)) > m.MaxBody:
		return nil, bodyLarge, errBodyLarge
	case err != nil:
		return nil, bodyBroken, err
	case r.ContentLength > 0 && r.ContentLength != int64(len(body)), r.ContentLength < 0 && len(body) == 0:
		return nil, broken, errRead
	}
	return body, problem{}, nil
}
