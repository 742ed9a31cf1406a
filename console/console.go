package console

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Store is what a console shows and does: an [ops.Store]. All methods are safe for
// concurrent use.
type Store interface {
	Ping(context.Context) error
	Overview(context.Context, ops.OverviewOptions) (*ops.Overview, error)
	Entries(context.Context, ops.Filter, ops.Page) (*ops.Entries, error)
	Count(context.Context, ops.Filter, int) (ops.Count, error)
	Kinds(context.Context, ops.Filter) (*ops.Kinds, error)
	Entry(context.Context, string) (*ops.Detail, error)
	Reveal(context.Context, string, ops.By) (*ops.Revealed, error)
	Try(context.Context, string, ops.By) (*ops.Trial, error)
	Act(context.Context, ops.Action, string, ops.By) error
	ActAll(context.Context, ops.Action, ops.Filter, int, ops.By) error
	Pause(context.Context, string, ops.By) error
	Resume(context.Context, string, ops.By) error
	Limit(context.Context, string, int, ops.By) error
	Audit(context.Context, ops.Page) (*ops.Audit, error)
}

var _ Store = (*ops.Store)(nil)

// Console is the handler. It is safe for concurrent use.
type Console struct {
	*site
	hosts   hosts
	gate    *gatekeeper
	origins *http.CrossOriginProtection
	mux     *http.ServeMux
	// each are the sites of several logs, by their names.
	each map[string]logSite
}

// logSite is that of one of several logs.
type logSite struct {
	*site
	mux *http.ServeMux
}

// New makes a console of a log, for an application that mounts it. targets are the
// data sources by their names in the log, as for the job (asyncjob.Targets): without
// one a write for it can be retried and discarded, but neither judged nor tried. The
// log stays the caller's to close, after the console. An error names every field of
// cfg that is wrong.
func New(log *txlog.SQLStorage, targets map[string]delivery.Target, cfg Config) (*Console, error) {
	store, err := ops.New(log, ops.Config{Targets: targets})
	if err != nil {
		return nil, err
	}
	return NewOn(func() Store { return store }, cfg)
}

// NewOn is [New] on a store, for bed-job. store gives nil for as long as the log could
// not be opened, which pages and /readyz then say.
func NewOn(store func() Store, cfg Config) (*Console, error) {
	return NewOnAll([]Log{{Store: store}}, cfg)
}

// NewOnAll is [NewOn] on one log or several, which have different names. Several are shown
// together, and each on its own, with all that a console of one log has, below /logs/NAME.
func NewOnAll(logs []Log, cfg Config) (*Console, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = logrus.StandardLogger()
	}
	c := &Console{hosts: newHosts(&cfg), gate: newGatekeeper(&cfg), origins: http.NewCrossOriginProtection(), each: map[string]logSite{}}
	c.site = &site{cfg: cfg, root: cfg.BasePath, store: logs[0].Store, log: cfg.Logger}
	if len(logs) > 1 {
		c.site.store = together(logs).one
		for _, l := range logs {
			c.site.logs = append(c.site.logs, l.Name)
		}
		for _, l := range logs {
			one := *c.site
			one.name, one.store = l.Name, l.Store
			one.cfg.BasePath = one.pathOf(l.Name)
			one.events = newEvents(one.store)
			c.each[l.Name] = logSite{&one, c.entrance(&one)}
		}
	}
	c.events = newEvents(c.site.store)
	c.mux = c.entrance(c.site)
	return c, nil
}

// ServeHTTP implements [http.Handler].
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	r, ok := below(r, c.cfg.BasePath)
	switch {
	case !ok:
		c.fail(w, r, person{}, noSuchPage())
	case !c.hosts.allow(r.Host):
		c.fail(w, r, person{}, &failure{status: http.StatusMisdirectedRequest, text: "This name is not the console's: add it to allowedHosts if it should be."})
	case c.foreign(r):
		c.fail(w, r, person{}, &failure{status: http.StatusForbidden, text: "The request was made by a page of another site."})
	default:
		c.way(r).ServeHTTP(w, r)
	}
}

// way leads to the site of all logs, or to that of the log in whose path the request is.
func (c *Console) way(r *http.Request) http.Handler {
	base, one := "", logSite{}
	for name, l := range c.each {
		// A name may hold a slash, and begin as another does.
		if path := "/logs/" + name; len(path) > len(base) && (r.URL.Path == path || strings.HasPrefix(r.URL.Path, path+"/")) {
			base, one = path, l
		}
	}
	if base == "" {
		return c.mux
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, _ = below(r, base)
		one.mux.ServeHTTP(w, r)
	})
}

// below takes a base path off.
func below(r *http.Request, base string) (*http.Request, bool) {
	if base == "" {
		return r, true
	}
	path, ok := strings.CutPrefix(r.URL.Path, base)
	if !ok || path != "" && !strings.HasPrefix(path, "/") {
		return r, false
	}
	u := *r.URL
	u.Path = "/" + strings.TrimPrefix(path, "/")
	if raw := r.URL.RawPath; raw != "" {
		u.RawPath = "/" + strings.TrimPrefix(raw[lengthOf(base, raw):], "/")
	}
	below := r.Clone(r.Context())
	below.URL = &u
	return below, true
}

// lengthOf is how much of an escaped path is a base path, however that is escaped there.
func lengthOf(base, raw string) int {
	for i := len(base); i <= len(raw); i++ {
		if i < len(raw) && raw[i] != '/' {
			continue
		}
		if path, err := url.PathUnescape(raw[:i]); err == nil && path == base {
			return i
		}
	}
	return 0
}

// Close ends the streams of live updates. Requests that run are not waited for.
func (c *Console) Close() {
	c.events.close()
	for _, l := range c.each {
		l.events.close()
	}
}
