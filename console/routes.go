package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A route is a path with its required role. No other place checks roles.
type route struct {
	method, path string
	// role is the lowest sufficient role; 0 admits everybody. A call for a bulk amendment checks
	// for Reveal itself.
	role Role
	// reveals: a request for values requires the role reveal.
	reveals bool
	// long routes may take longer than other requests, and end with their client.
	long bool
	// body bounds a request's body; 0 means maxBody.
	body int64
	// noLog: it needs no log.
	noLog bool
	// do returns the data of a page or of a call, a [redirect], or an [http.Handler] that writes
	// the answer.
	do func(*input) (any, error)
}

type redirect string

// answerWithin bounds how long a request waits for the log.
const answerWithin = 30 * time.Second

const maxBody = 64 << 10

// maxAmendment bounds the body of an amendment, which holds a whole statement.
const maxAmendment = 16 << 20

func routes(s *site) []route {
	return append(services(s), []route{
		{method: "GET", path: "/{$}", role: Read, do: s.overviewPage},
		{method: "GET", path: "/entries", role: Read, do: s.entriesPage},
		{method: "GET", path: "/entries/{id}", role: Read, do: s.entryPage(false)},
		{method: "GET", path: "/entries/{id}/next", role: Read, do: s.nextPage},
		{method: "POST", path: "/entries/{id}/reveal", role: Reveal, do: s.entryPage(true)},
		{method: "POST", path: "/entries/{id}/amend", role: Reveal, body: maxAmendment, do: s.amend},
		{method: "GET", path: "/entries/{id}/{action}", role: Read, do: s.askEntryPage},
		{method: "POST", path: "/entries/{id}/{action}", role: Operate, do: s.act},
		{method: "GET", path: "/transactions/{id}/compensate", role: Read, do: s.askCompensatePage},
		{method: "POST", path: "/transactions/{id}/compensate", role: Operate, do: s.compensate},
		{method: "GET", path: "/bulk/{action}", role: Read, do: s.askBulkPage},
		{method: "POST", path: "/bulk/amend", role: Reveal, body: maxAmendment, do: s.bulk},
		{method: "POST", path: "/bulk/{action}", role: Operate, do: s.bulk},
		{method: "GET", path: "/data-sources/{name}/{action}", role: Read, do: s.askSourcePage},
		{method: "POST", path: "/data-sources/{name}/{action}", role: Operate, do: s.control},
		{method: "GET", path: "/audit", role: Read, reveals: true, do: s.auditPage},

		{method: "GET", path: "/api/v1/overview", role: Read, do: s.overviewCall},
		{method: "GET", path: "/api/v1/entries", role: Read, do: s.entriesCall},
		{method: "GET", path: "/api/v1/entries/count", role: Read, do: s.countCall},
		{method: "GET", path: "/api/v1/entries/kinds", role: Read, do: s.kindsCall},
		{method: "GET", path: "/api/v1/entries/{id}", role: Read, reveals: true, do: s.entryCall},
		{method: "POST", path: "/api/v1/entries/bulk", role: Operate, body: maxAmendment, do: s.bulk},
		{method: "POST", path: "/api/v1/entries/{id}/amend", role: Reveal, body: maxAmendment, do: s.amend},
		{method: "POST", path: "/api/v1/entries/{id}/{action}", role: Operate, do: s.act},
		{method: "POST", path: "/api/v1/transactions/{id}/compensate", role: Operate, do: s.compensate},
		{method: "POST", path: "/api/v1/data-sources/{name}/{action}", role: Operate, do: s.control},
		{method: "GET", path: "/api/v1/audit", role: Read, reveals: true, do: s.auditCall},
	}...)
}

// indexRoutes are all routes of the index of several logs.
func indexRoutes(s *site) []route {
	return append(services(s), []route{
		{method: "GET", path: "/{$}", noLog: true, role: Read, do: s.indexPage},
		{method: "GET", path: "/api/v1/logs", noLog: true, role: Read, do: s.indexCall},
	}...)
}

// services are the routes of every site.
func services(s *site) []route {
	metricsRole := Read
	if s.cfg.OpenMetrics {
		metricsRole = 0
	}
	return []route{
		{method: "GET", path: "/healthz", noLog: true, do: func(*input) (any, error) { return plain(http.StatusOK, "ok"), nil }},
		{method: "GET", path: "/readyz", noLog: true, do: s.readyz},
		{method: "GET", path: "/metrics", noLog: true, role: metricsRole, do: s.metrics},
		{method: "GET", path: "/assets/{file...}", noLog: true, role: Read, do: s.asset},
		{method: "GET", path: "/events", noLog: true, role: Read, long: true, do: s.stream},
		{method: "GET", path: "/api/v1/openapi.json", noLog: true, role: Read, do: s.openapi},
	}
}

// nothing is the route for every other path.
var nothing = route{role: Read, noLog: true, do: func(*input) (any, error) { return nil, errNoPage }}

// wantsValues takes every reveal but an explicit no for a yes: a typing error must
// not slip past the role.
func wantsValues(r *http.Request) bool {
	return slices.ContainsFunc(r.URL.Query()["reveal"], func(v string) bool { return v != "false" && v != "0" })
}

// entrance leads to the routes of a site.
func (c *Console) entrance(s *site, routes []route) http.Handler {
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.Handle(r.method+" "+r.path, c.enter(s, r))
	}
	// Unknown paths require the role read too.
	mux.Handle("/", c.enter(s, nothing))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m := ofSource.FindStringSubmatch(r.URL.EscapedPath()); m != nil {
			r = at(r, m[1]+strings.ReplaceAll(m[2], "/", "%2F")+m[3])
		}
		mux.ServeHTTP(w, r)
	})
}

// ofSource matches a path with a data source's name. A proxy may have decoded the slashes in the
// name, as nginx does when proxy_pass has a path.
var ofSource = regexp.MustCompile(`^((?:/api/v1)?/data-sources/)(.+/.+)(/[^/]+)$`)

// enter is the one way into a route: it checks the log-in, then the role, and then runs the
// request.
func (c *Console) enter(s *site, rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		role := rt.role
		if rt.reveals && wantsValues(r) {
			role = Reveal
		}
		var p person
		if role > 0 {
			var err error
			if p, err = c.gate.who(r); err != nil {
				s.fail(w, r, p, err)
				return
			}
			if p.Role < role {
				s.fail(w, r, p, &failure{status: http.StatusForbidden, text: "Your role does not allow this.", detail: role.String()})
				return
			}
			if role == Reveal && c.hosts.otherOrigin(r) {
				s.fail(w, r, p, errForeign)
				return
			}
		}
		if !rt.noLog && s.store() == nil {
			s.fail(w, r, p, errNoLog)
			return
		}
		if !rt.long {
			ctx, cancel := context.WithTimeout(r.Context(), answerWithin)
			defer cancel()
			r = r.WithContext(ctx)
		}
		r.Body = http.MaxBytesReader(w, r.Body, cmp.Or(rt.body, maxBody))
		answer, err := rt.do(&input{Request: r, person: p, l: languageOf(r), said: r.URL.Query()})
		if r.Method == http.MethodPost {
			offer(s.events.nudge, struct{}{}) // somebody acted
		}
		if err != nil {
			s.fail(w, r, p, err)
			return
		}
		switch a := answer.(type) {
		case http.Handler:
			a.ServeHTTP(w, r)
		case redirect:
			http.Redirect(w, r, string(a), http.StatusSeeOther)
		default:
			if isAPI(r) {
				writeJSON(w, http.StatusOK, a)
			} else {
				s.render(w, r, p, a)
			}
		}
	})
}

var errNoLog = errors.New("the transaction log could not be opened so far")

func isAPI(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/api/") }
