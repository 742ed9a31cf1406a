package call

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"
	"weak"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sender"
	"github.com/bedsql/bed/internal/service"
	"github.com/bedsql/bed/listener/delivery"
)

// StatusError is an answer other than 2xx. errors.As finds it in the error of a refused call, and in the
// cause of a pending one.
type StatusError = service.StatusError

// Service is an HTTP service as a data source. It is safe for concurrent use.
type Service struct {
	db     *sql.DB
	scoped bool
	// results are the results in use, by entry.
	results sync.Map
}

// New returns the service at baseURL, an http or https URL without a query. dataSource is its name in
// the log and in the job's configuration. cfg is as for a database. Under bedsql.ExactlyOnce the
// service must be behind package bedhttp, and an answer without its Idempotency-Scope is no delivery.
// Under bedsql.AtLeastOnce, the default, the service may handle a call several times, unless it
// recognizes keys. No row of the application's databases is involved in either.
//
// client sends the calls, on a copy that follows no redirects. Its transport adds the credentials,
// which are never logged. If the transport is an http.Transport without MaxResponseHeaderBytes, the
// copy's limit is 1 MiB.
func New(client *http.Client, dataSource, baseURL string, cfg bedsql.Config) (*Service, error) {
	s := &Service{scoped: cfg.Guarantee == bedsql.ExactlyOnce}
	of, err := service.Open(client, baseURL)
	if err != nil {
		return nil, err
	}
	of.Answered = s.answered
	if s.scoped && cfg.Removal == bedsql.RemovalByGuarantee {
		cfg.Removal = bedsql.RemovalAfterReturn
	}
	cfg.Guarantee = bedsql.AtLeastOnce // the service keeps the receipt
	connector, err := bedsql.NewConnector(of.Target(dataSource), cfg)
	if err != nil {
		return nil, err
	}
	s.db = sql.OpenDB(connector)
	return s, nil
}

// Target is a service as a data source of an asyncjob in the application's own process; bed-job has
// its own client. The job asks for baseURL by HEAD before it claims calls. While the service does not
// answer, or what stands before it answers 502, 503 or 504, the job counts no tries.
func Target(client *http.Client, dataSource, baseURL string) (delivery.Target, error) {
	of, err := service.Open(client, baseURL)
	if err != nil {
		return delivery.Target{}, err
	}
	return of.Target(dataSource), nil
}

// Send logs the request as an entry, and calls the service. ctx applies to calls as to writes. They
// belong to its soft transaction: in a staged one, or one made by bedsql.WithTx, End sends them, side
// by side with the parts of the databases, and a call that is refused there is parked. Under
// bedsql.WithOrderKey calls go in the order of their key. Under bedsql.WithIdempotencyKey the
// request's key and the data source make the key of the call, so that the request sent again gets the
// first answer; a second call of the service under it needs bedsql.WithKeyPart, or a staged soft
// transaction. The context of req has no effect.
//
// req has a method (POST, PUT, PATCH or DELETE), a path and a query below the base URL without scheme
// and host, a header and a body of at most 1 MiB, which Send reads and closes. Credentials and what
// belongs to a connection are refused in the header: Authorization, Cookie, Host, Proxy-*,
// X-Forwarded-*, Idempotency-* and the like. So is a path that servers read differently, with //, a
// backslash or the segments . and .. .
//
// The errors are bedsql's. nil means that the service has answered with a success. A refusal is a
// *StatusError. ErrPending means that the job sends the call again, until the service takes or
// refuses it. docs/services.md has the meaning of each answer.
func (s *Service) Send(ctx context.Context, req *http.Request) (*Result, error) {
	c, err := s.read(req)
	if err != nil {
		return nil, sender.Refused(fmt.Errorf("bed: the call was neither logged nor sent: %w", err))
	}
	text, args, err := c.Statement()
	if err != nil {
		return nil, err
	}
	r := new(Result)
	s.results.Store(c.ID, weak.Make(r))
	runtime.AddCleanup(r, func(id string) { s.results.Delete(id) }, c.ID)
	if r.result, err = s.db.ExecContext(ctx, text, args...); err != nil {
		return nil, err
	}
	return r, nil
}

func (s *Service) read(req *http.Request) (*service.Call, error) {
	if req == nil || req.URL == nil {
		return nil, errors.New("the request is nil, or has no URL")
	}
	u := req.URL
	c := &service.Call{ID: entry.NewID(), Method: req.Method, Path: u.EscapedPath(), Query: u.RawQuery, Header: req.Header, Scoped: s.scoped}
	if req.Body != nil {
		defer func() { _ = req.Body.Close() }()
		var err error
		if c.Body, err = io.ReadAll(io.LimitReader(req.Body, service.MaxBody+1)); err != nil {
			return nil, fmt.Errorf("its body cannot be read: %w", err)
		}
	}
	switch {
	case u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "":
		return nil, errors.New("its URL has a scheme, a host or a user: give it the path alone, which is below the base URL")
	case u.Fragment != "":
		return nil, errors.New("its URL has a fragment")
	case req.Host != "":
		return nil, errors.New("its Host is the service's")
	case len(req.Trailer) > 0:
		return nil, errors.New("it has trailers, which are not logged")
	}
	return c, nil
}

// answered hears of a delivery in this process.
func (s *Service) answered(id string, a *service.Answer) {
	if at, ok := s.results.Load(id); ok {
		if r := at.(weak.Pointer[Result]).Value(); r != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.answer = a
		}
	}
}

// Close waits a little for the removal of entries.
func (s *Service) Close() error { return s.db.Close() }

// Result is the outcome of a call. In a staged group it is known after End. It is safe for concurrent use.
type Result struct {
	result sql.Result

	mu     sync.Mutex
	answer *service.Answer
}

// get returns the answer, an empty one with an error. Its error is the call's: ErrStaged before End, and ErrRowsUnknown if the
// call is delivered and its answer was lost.
func (r *Result) get() (*service.Answer, error) {
	n, err := r.result.RowsAffected()
	if err != nil || n == 0 { // 0: End reports it
		return new(service.Answer), err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answer == nil || r.answer.Status == 0 {
		return new(service.Answer), bedsql.ErrRowsUnknown
	}
	return r.answer, nil
}

// Status returns the HTTP status of the answer, a 2xx. A 202 is a success too: a later
// refusal does not come back. In an immediate soft transaction the status is 0 for
// a call that End reports. Errors: bedsql.ErrStaged before End, the error of a call in a group, and
// bedsql.ErrRowsUnknown if the call is delivered and its answer was lost.
func (r *Result) Status() (int, error) {
	a, err := r.get()
	return a.Status, err
}

// Header returns the header of the answer. Its errors are Status's.
func (r *Result) Header() (http.Header, error) {
	a, err := r.get()
	return a.Header, err
}

// Body returns the body of the answer. Its errors are Status's; bedsql.ErrRowsUnknown also means that
// it is larger than 1 MiB or broke off. The call is delivered then.
func (r *Result) Body() ([]byte, error) {
	a, err := r.get()
	if a.Body == nil && a.Status != 0 {
		err = bedsql.ErrRowsUnknown
	}
	return a.Body, err
}
