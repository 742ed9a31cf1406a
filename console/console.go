package console

import (
	"context"
	"net/http"
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
	cfg     Config
	store   func() Store
	log     logrus.FieldLogger
	hosts   hosts
	gate    *gatekeeper
	origins *http.CrossOriginProtection
	mux     *http.ServeMux
	events  *events
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
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = logrus.StandardLogger()
	}
	c := &Console{
		cfg: cfg, store: store, log: cfg.Logger, hosts: newHosts(&cfg), gate: newGatekeeper(&cfg),
		origins: http.NewCrossOriginProtection(), mux: http.NewServeMux(),
	}
	c.events = newEvents(store)
	for _, r := range routes {
		c.mux.Handle(r.method+" "+r.path, c.enter(r))
	}
	// What no route takes is told only to who may read.
	c.mux.Handle("/", c.enter(nothing))
	return c, nil
}

// ServeHTTP implements [http.Handler].
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	r, ok := c.below(r)
	switch {
	case !ok:
		c.fail(w, r, person{}, &failure{status: http.StatusNotFound, text: "There is no such page."})
	case !c.hosts.allow(r.Host):
		c.fail(w, r, person{}, &failure{status: http.StatusMisdirectedRequest, text: "This name is not the console's: add it to allowedHosts if it should be."})
	case c.foreign(r):
		c.fail(w, r, person{}, &failure{status: http.StatusForbidden, text: "The request was made by a page of another site."})
	default:
		c.mux.ServeHTTP(w, r)
	}
}

// below takes the base path off.
func (c *Console) below(r *http.Request) (*http.Request, bool) {
	if c.cfg.BasePath == "" {
		return r, true
	}
	path, ok := strings.CutPrefix(r.URL.Path, c.cfg.BasePath)
	if !ok || path != "" && !strings.HasPrefix(path, "/") {
		return r, false
	}
	u := *r.URL
	u.Path, u.RawPath = "/"+strings.TrimPrefix(path, "/"), "/"+strings.TrimPrefix(strings.TrimPrefix(u.RawPath, c.cfg.BasePath), "/")
	if r.URL.RawPath == "" {
		u.RawPath = ""
	}
	below := r.Clone(r.Context())
	below.URL = &u
	return below, true
}

// Close ends the streams of live updates. Requests that run are not waited for.
func (c *Console) Close() { c.events.close() }
