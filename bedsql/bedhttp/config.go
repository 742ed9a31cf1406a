package bedhttp

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/internal/kept"
	"github.com/bedsql/bed/internal/httpkey"
)

// Config configures New.
type Config struct {
	// DB is the database of the keys, the responses and the rows that share their fate. bed must
	// have opened it. A tracer may wrap bed if it passes contexts on. Required.
	DB *sql.DB
	// Client returns the owner of a request's key: the tenant or account, as authentication in
	// front of the middleware has established it. Never use a header that the client chooses. Two
	// clients with the same key never meet. If Client returns "", the request is answered 403. An
	// application with a single client returns a constant. Required.
	Client func(*http.Request) string
	// Service is the name of the service behind these requests. Two services on one database never
	// answer for each other; all processes of one service use the same name. Another name makes
	// every request new. Required.
	Service string
	// Required makes a request without a key an error, answered 400. By default it goes to the
	// handler as it is, without a transaction.
	Required bool
	// Methods are the methods that carry keys. Default POST and PATCH.
	Methods []string
	// MaxBody is the largest request body in bytes; a larger one is answered 413. Default 1 MiB.
	MaxBody int64
	// MaxResponse is the largest response in bytes, body and kept headers. A larger one is rolled
	// back and answered 500. Default 1 MiB, at most 8 MiB, the limit of a receipt.
	MaxResponse int
	// Headers are the response headers to keep. The others are sent with the first response only.
	// Default Content-Type, Location, Cache-Control, Content-Disposition, Vary,
	// X-Content-Type-Options and Content-Security-Policy; Content-Encoding is always kept.
	// Set-Cookie and Authorization cannot be kept.
	Headers []string
	// Fingerprint returns the identity of a request: another request under the same key is
	// answered 422. It may read and parse the request, whose body is body. Default: method, path,
	// query, content type and body.
	Fingerprint func(r *http.Request, body []byte) string
	// Keep decides which responses to keep. Any other response is sent once, its rows are rolled
	// back, and a resent request runs the handler again. A 2xx is always kept. Default: 2xx, 4xx
	// but 401, 403, 408, 425 and 429, and a redirect by a handler that has called Tx.
	Keep func(status int) bool
	// KeysPerHour is how many new keys of one client this process accepts within an hour. Each
	// leaves a receipt with its response. More are answered 429; known keys work as ever. Default
	// 0: no bound, because one client may be a whole service.
	KeysPerHour int
	// Counters count the answers of the middleware. Default: its own.
	Counters *Counters
	// Wait is how long a duplicate waits for the first request, and any request for a connection,
	// before the answer 409 or 503. It also bounds the search for the outcome of an unanswered
	// COMMIT. If the database ends the wait (SQLite, a lock_timeout), a duplicate in another
	// process waits for Config.RetryTimeout of DB at most. Default 10s.
	Wait time.Duration
	// HandlerTimeout is how long a handler may run under a key. When it is over, its
	// context ends and everything is rolled back. The client's going away does not end
	// it. Default 1m.
	HandlerTimeout time.Duration
	// Isolation is the isolation level of the transaction. Default the database's.
	Isolation sql.IsolationLevel
	// StatusURL returns the address at which Status answers for an entry. Error sends it with the
	// answer to a pending write. Default nil: no address.
	StatusURL func(entryID string) string
	// Undo decides whether a request may undo another one of the same client, by the header
	// Idempotency-Undoes. It also makes the requests of this middleware undoable: writes and Ends
	// under their contexts are refused with bedsql.ErrOutsideRequest, unless Tx makes them or
	// bedsql.WithTx records them in it. Decide by authentication, as Client does, and do not read the
	// body. Default nil: no request may, and one with the header is answered 400.
	Undo func(*http.Request) bool
	// OnError receives the error, if any, when the middleware answers instead of the handler. Its
	// text may hold values. Many requests may call it at once. Default nil: not called.
	OnError func(*http.Request, error)
}

// Counters count the answers of the middleware to requests with a key. They may be read at
// any time, and shared between middlewares to add them up.
type Counters struct {
	// Replayed counts requests answered with an earlier response.
	Replayed atomic.Uint64
	// Outstanding counts requests answered 409 because the first one had not ended within
	// Config.Wait.
	Outstanding atomic.Uint64
	// Undone counts requests that undo another one and were answered 2xx, whether or not there was
	// anything to undo. A resent one counts as Replayed.
	Undone atomic.Uint64
	// Refused counts requests refused for good. Their key belongs to another request, is missing
	// or malformed; the client is unknown; the body is unusable; or the database refused the
	// COMMIT.
	Refused atomic.Uint64
	// Failed counts requests answered 429, 500 or 503 in place of the handler.
	Failed atomic.Uint64
}

func (c *Counters) count(p *problem) {
	switch {
	case p.Type == outstanding.Type:
		c.Outstanding.Add(1)
	case p.Status < 500 && !p.retry:
		c.Refused.Add(1)
	default:
		c.Failed.Add(1)
	}
}

// maxResponse leaves room for base64 in a receipt's MEDIUMTEXT of 16 MiB.
const maxResponse = 8 << 20

// New makes the middleware. It returns every mistake in cfg, and an error for a DB without bed or
// without receipts. It does not dial. The middleware is safe for concurrent use.
func New(cfg Config) (func(http.Handler) http.Handler, error) {
	m, err := configure(cfg)
	if err != nil {
		return nil, err
	}
	return func(next http.Handler) http.Handler {
		return m.answering(func(w http.ResponseWriter, r *http.Request) (*problem, error) { return m.handle(w, r, next) })
	}, nil
}

// configure is for New and Scope.
func configure(cfg Config) (*middleware, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("bedhttp: Config."+format, args...)) }
	m := &middleware{}
	if cfg.Client == nil {
		bad("Client is missing: it says whose key a request carries")
	}
	if cfg.Service == "" {
		bad("Service is missing: it keeps the keys of two services on one database apart")
	}
	if retention, err := retentionOf(cfg.DB); err != nil {
		bad("DB cannot keep idempotency keys: %w", err)
	} else {
		m.retention, m.home = retention, homeOf(cfg.DB)
		m.expiry = fmt.Sprintf(" A key and its response are kept for %g hours.", retention.Hours())
	}
	if min(cfg.MaxBody, int64(cfg.MaxResponse), int64(cfg.Wait), int64(cfg.HandlerTimeout), int64(cfg.KeysPerHour)) < 0 {
		bad("MaxBody, MaxResponse, Wait, HandlerTimeout and KeysPerHour must not be negative")
	}
	if cfg.MaxResponse > maxResponse {
		bad("MaxResponse is %d, a receipt can hold %d at most", cfg.MaxResponse, maxResponse)
	}
	cfg.MaxBody, cfg.MaxResponse = min(cmp.Or(cfg.MaxBody, 1<<20), math.MaxInt64-1), cmp.Or(cfg.MaxResponse, 1<<20)
	cfg.Wait, cfg.HandlerTimeout = cmp.Or(cfg.Wait, 10*time.Second), cmp.Or(cfg.HandlerTimeout, time.Minute)
	if cfg.Methods == nil {
		cfg.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	for _, method := range cfg.Methods {
		if method == "" || method == http.MethodConnect {
			bad("Methods holds %q, which cannot carry a key", method)
		}
	}
	if cfg.Headers == nil {
		cfg.Headers = []string{"Content-Type", "Location", "Cache-Control", "Content-Disposition", "Vary", "X-Content-Type-Options", "Content-Security-Policy"}
	}
	if cfg.Counters == nil {
		cfg.Counters = new(Counters)
	}
	m.headers = []string{encoding}
	for _, name := range cfg.Headers {
		name = textproto.CanonicalMIMEHeaderKey(name)
		if slices.Contains(neverKept, name) || strings.HasPrefix(name, http.TrailerPrefix) || name == "" {
			bad("Headers holds %q, which is never kept", name)
		}
		if !slices.Contains(m.headers, name) {
			m.headers = append(m.headers, name)
		}
	}
	m.Config = cfg
	return m, errors.Join(errs...)
}

// neverKept are secret headers, and headers that the server makes itself.
var neverKept = []string{"Set-Cookie", "Set-Cookie2", "Authorization", "Proxy-Authorization", "Authentication-Info", "Www-Authenticate",
	"Connection", "Content-Length", "Date", "Keep-Alive", "Trailer", "Transfer-Encoding", "Upgrade", httpkey.Replayed, httpkey.Undone, httpkey.Scope, httpkey.Kept}

// retentionOf asks db how long it keeps keys.
func retentionOf(db *sql.DB) (time.Duration, error) {
	if db == nil {
		return 0, errNotBed
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	found, err := kept.Find(ctx, db)
	if c, ok := found.(*bedsql.Conn); ok {
		return c.KeyRetention()
	}
	return 0, cmp.Or(err, errNotBed)
}

var errNotBed = errors.New("it is not opened by bed, what is around it drops the context of BeginTx, or that is not under the key of the request's context")
