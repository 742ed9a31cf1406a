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
	Reveal(context.Context, string, ops.By) (*ops.Detail, error)
	Try(context.Context, string, ops.By) (*ops.Trial, error)
	Act(context.Context, ops.Action, string, ops.By) error
	Amend(context.Context, string, ops.Amendment, ops.By) (*ops.Amended, error)
	Compensate(context.Context, string, ops.By) (*ops.Compensated, error)
	Select(context.Context, ops.Filter) (*ops.Selection, error)
	ActAll(context.Context, ops.Action, *ops.Selection, ops.By) (ops.Done, error)
	Control(context.Context, ops.Action, string, int, ops.By) error
	Audit(context.Context, ops.Page) (*ops.Audit, error)
	RevealAudit(context.Context, ops.Page, ops.By) (*ops.Audit, error)
}

var _ Store = (*ops.Store)(nil)

// Console is the handler. It is safe for concurrent use.
type Console struct {
	*site
	hosts hosts
	gate  *gatekeeper
	mux   *http.ServeMux
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
	return NewOn(cfg, Log{Store: func() Store { return store }})
}

// NewOn is [New] on one log or several, which have different names. Of several, the first
// page is an index, and each has all that a console of one log has below /logs/NAME.
func NewOn(cfg Config, logs ...Log) (*Console, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = logrus.StandardLogger()
	}
	c := &Console{hosts: newHosts(&cfg), gate: newGatekeeper(&cfg)}
	if len(logs) == 1 {
		c.site = newSite(cfg, logs[0])
		c.mux = c.entrance(c.site, routes(c.site))
		return c, nil
	}
	c.site = newIndex(cfg, logs)
	c.mux = c.entrance(c.site, indexRoutes(c.site))
	each := map[string]http.Handler{}
	for _, one := range c.logs {
		each[one.name] = c.entrance(one, routes(one))
	}
	for _, pattern := range []string{"/logs/{name}", "/logs/{name}/{rest...}"} {
		c.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			one := each[r.PathValue("name")]
			if one == nil {
				one = c.enter(c.site, nothing)
			}
			_, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/logs/"), "/")
			one.ServeHTTP(w, at(r, "/"+rest))
		})
	}
	return c, nil
}

// ServeHTTP implements [http.Handler].
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	path, ok := strings.CutPrefix(r.URL.EscapedPath(), c.cfg.BasePath)
	if c.cfg.BasePath != "" && ok {
		ok = path == "" || strings.HasPrefix(path, "/")
		r = at(r, "/"+strings.TrimPrefix(path, "/"))
	}
	switch {
	case !ok:
		c.fail(w, r, person{}, errNoPage)
	case !c.hosts.allow(r.Host):
		c.fail(w, r, person{}, &failure{status: http.StatusMisdirectedRequest, text: "This name is not the console's: add it to allowedHosts if it should be."})
	case foreign(r):
		c.fail(w, r, person{}, errForeign)
	default:
		c.mux.ServeHTTP(w, r)
	}
}

// at is the request at another path, as it stands in an address.
func at(r *http.Request, path string) *http.Request {
	there := r.Clone(r.Context())
	if plain, err := url.PathUnescape(path); err == nil {
		there.URL.Path, there.URL.RawPath = plain, path
	}
	return there
}

// Close ends the streams of live updates. Requests that run are not waited for.
func (c *Console) Close() {
	c.events.end()
	for _, one := range c.logs {
		one.events.end()
	}
}
