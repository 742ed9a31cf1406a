package console

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/slogger"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// store is the console's access to a log: an [ops.Store]. All methods are safe for concurrent use.
type store interface {
	Ping(context.Context) error
	Overview(context.Context, ops.OverviewOptions) (*ops.Overview, error)
	Entries(context.Context, ops.Filter, ops.Page) (*ops.Entries, error)
	Count(context.Context, ops.Filter, int) (ops.Count, error)
	Kinds(context.Context, ops.Filter) (*ops.Kinds, error)
	Progress(context.Context, []string) (ops.Progress, error)
	Entry(context.Context, string) (*ops.Detail, error)
	Reveal(context.Context, string, ops.By) (*ops.Detail, error)
	Try(context.Context, string, ops.By) (*ops.Trial, error)
	Act(context.Context, ops.Action, string, ops.By) error
	Amend(context.Context, string, ops.Amendment, ops.By) (*ops.Amended, error)
	AmendAll(context.Context, *ops.Selection, ops.Amendment, ops.By, bool) (*ops.AmendedAll, error)
	Compensate(context.Context, string, ops.By) (*ops.Compensated, error)
	Select(context.Context, ops.Filter) (*ops.Selection, error)
	ActAll(context.Context, ops.Action, *ops.Selection, ops.By) (ops.Done, error)
	Control(context.Context, ops.Action, string, int, ops.By) error
	Audit(context.Context, ops.Page) (*ops.Audit, error)
	RevealAudit(context.Context, ops.Page, ops.By) (*ops.Audit, error)
}

var _ store = (*ops.Store)(nil)

// Console is the handler. It is safe for concurrent use.
type Console struct {
	*site
	hosts hosts
	gate  *gatekeeper
	mux   http.Handler
}

// New makes a console of a log, for an application to mount. targets are the data sources by their
// names in the log, as for the job (asyncjob.Targets). Writes for other data sources can be retried
// and discarded, but neither judged nor tried. The caller closes the log, after the console. An
// error names every wrong field of cfg.
func New(log *txlog.SQLStorage, targets map[string]delivery.Target, cfg Config) (*Console, error) {
	s, err := ops.New(log, ops.Config{Targets: targets})
	if err != nil {
		return nil, err
	}
	return newOn(cfg, source{store: func() store { return s }})
}

// NewOn is [New] on one log or several with different names. With several, the first page is an
// index, and /logs/NAME serves the console of each log.
func NewOn(cfg Config, logs ...Log) (*Console, error) {
	sources := make([]source, len(logs))
	for i, l := range logs {
		sources[i] = source{l.Name, func() store {
			if s := l.Store(); s != nil {
				return s
			}
			return nil
		}}
	}
	return newOn(cfg, sources...)
}

func newOn(cfg Config, logs ...source) (*Console, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Logger = slogger.Of(cfg.Logger, cfg.Slog)
	cfg.BasePath = strings.TrimSuffix(cfg.BasePath, "/")
	c := &Console{hosts: newHosts(&cfg), gate: newGatekeeper(&cfg)}
	if len(logs) == 1 {
		c.site = newSite(cfg, logs[0])
		c.mux = c.entrance(c.site, routes(c.site))
		return c, nil
	}
	c.site = newIndex(cfg, logs)
	front := c.entrance(c.site, indexRoutes(c.site))
	each := make([]http.Handler, len(c.logs))
	for i, one := range c.logs {
		each[i] = c.entrance(one, routes(one))
	}
	c.mux = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		below, ok := strings.CutPrefix(r.URL.EscapedPath(), "/logs/")
		for i, one := range c.logs {
			// A proxy may have decoded the slashes in its name.
			for _, name := range []string{url.PathEscape(one.name), (&url.URL{Path: one.name}).EscapedPath()} {
				if rest, is := strings.CutPrefix(below+"/", name+"/"); ok && is {
					each[i].ServeHTTP(w, at(r, path.Clean("/"+rest)))
					return
				}
			}
		}
		front.ServeHTTP(w, r)
	})
	return c, nil
}

// arrived is the context key of the request as it came, before headers of a proxy changed it.
type arrived struct{}

// ServeHTTP implements [http.Handler].
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	r = c.below(c.gate.proxies.forwarded(r.WithContext(context.WithValue(r.Context(), arrived{}, r))))
	switch {
	case !c.hosts.allow(r.Host) && !c.scrapes(r):
		c.fail(w, r, person{}, &failure{status: http.StatusMisdirectedRequest, text: "This name is not the console's: add it to allowedHosts if it should be."})
	case c.hosts.foreign(r):
		c.fail(w, r, person{}, errForeign)
	default:
		c.mux.ServeHTTP(w, r)
	}
}

// below is the request at its path below BasePath. A proxy may have taken BasePath off. The
// multiplexer would redirect an unclean path to one outside of BasePath.
func (c *Console) below(r *http.Request) *http.Request {
	given := r.URL.EscapedPath()
	clean := path.Clean("/" + given)
	if c.cfg.BasePath != "" && (clean == c.cfg.BasePath || strings.HasPrefix(clean, c.cfg.BasePath+"/")) {
		clean = "/" + strings.TrimPrefix(clean[len(c.cfg.BasePath):], "/")
	}
	if clean == given {
		return r
	}
	return at(r, clean)
}

// scrapes reports whether a program asks for metrics with its token. No page can send one,
// so it may use any name, such as a pod's address.
func (c *Console) scrapes(r *http.Request) bool {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	_, known := c.gate.token(given)
	return ok && known && r.Method == http.MethodGet && r.URL.Path == "/metrics"
}

// at is the request at another path, as it stands in an address.
func at(r *http.Request, path string) *http.Request {
	there := r.Clone(r.Context())
	if plain, err := url.PathUnescape(path); err == nil {
		there.URL.Path, there.URL.RawPath = plain, path
	}
	return there
}

// Close ends the streams of live updates. It does not wait for running requests.
func (c *Console) Close() {
	c.events.end()
	for _, one := range c.logs {
		one.events.end()
	}
}
