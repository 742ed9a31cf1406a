package service

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/errmask"
	"github.com/bedsql/bed/internal/httpkey"
	"github.com/bedsql/bed/internal/sender"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
)

const (
	// maxAnswer is the size of the largest body that is handed on; a StatusError has the first
	// maxRefusal bytes.
	maxAnswer  = 1 << 20
	maxRefusal = 64 << 10
	// MaxHeader bounds the headers of an answer.
	MaxHeader = 1 << 20
)

// Answer is a service's answer to a delivered call.
type Answer struct {
	Status int
	Header http.Header
	// Body is nil if it is larger than 1 MiB, or broke off.
	Body []byte
}

// LastInsertId implements driver.Result.
func (*Answer) LastInsertId() (int64, error) { return driver.RowsAffected(1).LastInsertId() }

// RowsAffected implements driver.Result.
func (*Answer) RowsAffected() (int64, error) { return 1, nil }

// Replayed reports whether an earlier request under the key was answered so.
func (a *Answer) Replayed() bool { return a.Header.Get(httpkey.Replayed) != "" }

// Service is an HTTP service. It is safe for concurrent use.
type Service struct {
	// Base is its base URL; Open checks it.
	Base *url.URL
	// Client sends the calls. It adds the credentials.
	Client *http.Client
	// Answered hears of each delivery; may be nil.
	Answered func(id string, a *Answer)
}

// Open returns the service at a base URL. The client is copied: the copy follows no redirects, which
// could carry the call and its credentials elsewhere.
func Open(client *http.Client, base string) (*Service, error) {
	if client == nil {
		return nil, errors.New("bed: the client of the service is nil: http.DefaultClient will do")
	}
	bad := errors.New("bed: the base URL of a service is http:// or https://, a host, and maybe a path; no user, query or fragment")
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || strings.Contains(base, "#") {
		return nil, bad // url.Parse's error would quote it
	}
	if path := strings.TrimSuffix(u.EscapedPath(), "/"); path != "" && checkPath(path) != nil {
		return nil, bad
	}
	c := *client
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if c.Transport == nil {
		c.Transport = http.DefaultTransport
	}
	if t, ok := c.Transport.(*http.Transport); ok && t.MaxResponseHeaderBytes == 0 {
		t = t.Clone()
		t.MaxResponseHeaderBytes = MaxHeader
		c.Transport = t
	}
	return &Service{Base: u, Client: &c}, nil
}

// Target returns the service as a data source.
func (s *Service) Target(dataSource string) delivery.Target {
	connect := func(context.Context) (sender.Link, error) { return link{s}, nil }
	d := callDialect
	d.Namespace = net.JoinHostPort(s.Base.Hostname(), cmp.Or(s.Base.Port(), map[string]string{"http": "80", "https": "443"}[s.Base.Scheme]))
	return sender.Target(d, dataSource, Settings, connect)
}

// System is the kind of the data source in events.
const System = "http"

var callDialect = dialect.Dialect{Name: "http", System: System, Flavor: sqltext.Calls, Amend: amend, Peer: peer}

// link sends calls through the service's client, which has its own connections.
type link struct{ *Service }

func (l link) Read(text string, args []driver.NamedValue) (func(context.Context) (driver.Result, error), error) {
	c, err := read(text, args)
	return func(ctx context.Context) (driver.Result, error) {
		a, err := l.send(ctx, c)
		if err != nil {
			return nil, err
		}
		if l.Answered != nil {
			l.Answered(c.ID, a)
		}
		return a, nil
	}, err
}

func (l link) Closed() bool { return false }

func (l link) Close() error { return nil }

// Ping asks for the base URL. Any answer will do but those of a proxy whose service is away.
func (l link) Ping(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodHead, l.Base.String(), nil)
	if err != nil {
		return err
	}
	res, err := l.Client.Do(r)
	if err != nil {
		return unsent(err, false)
	}
	_ = res.Body.Close()
	switch res.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return sender.NotSent(fmt.Errorf("the service is away: what stands before it answers %s", res.Status))
	}
	return nil
}

// send sends a call and reads its answer.
func (l link) send(ctx context.Context, c *Call) (*Answer, error) {
	var asked, dialled, written, again atomic.Bool
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) {
			if asked.Swap(true) && written.Load() {
				again.Store(true)
			}
		},
		GotConn:      func(httptrace.GotConnInfo) { dialled.Store(true) },
		WroteHeaders: func() { written.Store(true) },
	})
	u := *l.Base
	u.RawPath = strings.TrimSuffix(u.EscapedPath(), "/") + c.Path
	u.Path, _ = url.PathUnescape(u.RawPath) // they were checked
	u.RawQuery = c.Query
	r, err := http.NewRequestWithContext(ctx, c.Method, u.String(), bytes.NewReader(c.Body))
	if err != nil {
		return nil, sender.Refused(errors.New("bed: the call cannot be sent: its address is malformed"))
	}
	for name, values := range c.Header {
		r.Header[name] = values
	}
	if scope, ok := ctx.Value(scopeKey{}).(string); ok {
		r.Header.Set(httpkey.Scope, scope)
	}
	for name, values := range c.more {
		r.Header[name] = values
	}
	r.Header.Set(httpkey.Key, `"`+c.Key+`"`)
	res, err := l.Client.Do(r)
	switch {
	case err != nil && again.Load(): // net/http repeats a keyed request, and the error is of the last one alone
		return nil, &unanswered{withoutURL(err)}
	case err != nil:
		return nil, unsent(err, asked.Load() && !dialled.Load())
	}
	defer func() { _ = res.Body.Close() }()
	if end, ok := ctx.Deadline(); ok { // the status decides, also if the body is slow
		defer time.AfterFunc(time.Until(end)*3/4, cancel).Stop()
	}
	answer := &StatusError{Status: res.StatusCode, Header: res.Header}
	if res.StatusCode >= 300 {
		answer.Body, _ = io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	}
	if err := judge(c.Scoped, answer); err != nil {
		return nil, err
	}
	a := &Answer{Header: res.Header}
	if res.StatusCode >= 300 {
		return a, nil // its response is lost
	}
	a.Status = res.StatusCode
	if body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1)); err == nil && len(body) <= maxAnswer {
		a.Body = body
	}
	return a, nil
}

// unsent gives an error without an answer its meaning; certain means that there never was a
// connection.
func unsent(err error, certain bool) error {
	var (
		name  *net.DNSError
		op    *net.OpError
		alert tls.AlertError
	)
	err = withoutURL(err)
	switch {
	case errors.As(err, &name) && name.IsNotFound, errors.As(err, &alert) && ofHandshake[alert],
		errors.As(err, new(*tls.CertificateVerificationError)), errors.As(err, new(tls.RecordHeaderError)),
		errors.As(err, new(x509.HostnameError)), errors.As(err, new(x509.UnknownAuthorityError)), errors.Is(err, http.ErrSchemeMismatch):
		return sender.Misled(err)
	case certain, errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect"):
		return sender.NotSent(err)
	}
	return &unanswered{err}
}

// withoutURL drops the address, which may hold values.
func withoutURL(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

// unanswered is an error without an answer. net/http quotes a malformed answer, perhaps an echo of the call.
type unanswered struct{ error }

func (e *unanswered) Unwrap() error { return e.error }
func (e *unanswered) Shown() string { return errmask.Mask(e.Error()) }

// ofHandshake are the alerts about handshake, certificates, access, version and name. With TLS 1.3 they come
// after the request.
var ofHandshake = map[tls.AlertError]bool{40: true, 42: true, 43: true, 44: true, 45: true, 46: true, 48: true, 49: true, 70: true, 71: true, 112: true, 116: true, 120: true}
