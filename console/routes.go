package console

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/ops"
)

// A route is a path and who may take it. There is no other place where a role is
// asked for.
type route struct {
	method, path string
	// role is the lowest that may; 0 means anybody.
	role Role
	// roleFor raises the role for some requests; nil for none.
	roleFor func(*http.Request) Role
	// long: it may take longer than other requests, and ends with its client.
	long bool
	// noLog: it needs no log.
	noLog bool
	do    func(c *Console, w http.ResponseWriter, r *http.Request, p person) error
}

// answerWithin bounds what a request waits for the log.
const answerWithin = 30 * time.Second

// maxBody bounds a request's body.
const maxBody = 64 << 10

var routes = []route{
	{method: "GET", path: "/healthz", noLog: true, do: (*Console).healthz},
	{method: "GET", path: "/readyz", noLog: true, do: (*Console).readyz},
	{method: "GET", path: "/metrics", noLog: true, role: Read, roleFor: openOnLoopback, do: (*Console).metrics},
	{method: "GET", path: "/assets/{file...}", noLog: true, role: Read, do: (*Console).asset},
	{method: "GET", path: "/events", noLog: true, role: Read, long: true, do: (*Console).stream},

	{method: "GET", path: "/{$}", role: Read, do: (*Console).overviewPage},
	{method: "GET", path: "/entries", role: Read, do: (*Console).entriesPage},
	{method: "GET", path: "/entries/{id}", role: Read, do: (*Console).entryPage},
	{method: "POST", path: "/entries/{id}/reveal", role: Reveal, do: (*Console).revealPage},
	{method: "POST", path: "/entries/{id}/try", role: Operate, do: (*Console).tryPage},
	{method: "GET", path: "/entries/{id}/{action}", role: Read, do: (*Console).askEntryPage},
	{method: "POST", path: "/entries/{id}/{action}", role: Operate, do: (*Console).actPage},
	{method: "GET", path: "/bulk/{action}", role: Read, do: (*Console).askBulkPage},
	{method: "POST", path: "/bulk/{action}", role: Operate, do: (*Console).bulkPage},
	{method: "GET", path: "/data-sources/{name}/{action}", role: Read, do: (*Console).askSourcePage},
	{method: "POST", path: "/data-sources/{name}/{action}", role: Operate, do: (*Console).sourcePage},
	{method: "GET", path: "/audit", role: Read, do: (*Console).auditPage},

	{method: "GET", path: "/api/v1/openapi.json", noLog: true, role: Read, do: (*Console).openapi},
	{method: "GET", path: "/api/v1/overview", role: Read, do: (*Console).overviewCall},
	{method: "GET", path: "/api/v1/entries", role: Read, do: (*Console).entriesCall},
	{method: "GET", path: "/api/v1/entries/count", role: Read, do: (*Console).countCall},
	{method: "GET", path: "/api/v1/entries/kinds", role: Read, do: (*Console).kindsCall},
	{method: "GET", path: "/api/v1/entries/{id}", role: Read, roleFor: revealing, do: (*Console).entryCall},
	{method: "POST", path: "/api/v1/entries/bulk", role: Operate, do: (*Console).bulkCall},
	{method: "POST", path: "/api/v1/entries/{id}/{action}", role: Operate, do: (*Console).actCall},
	{method: "POST", path: "/api/v1/data-sources/{name}/{action}", role: Operate, do: (*Console).sourceCall},
	{method: "GET", path: "/api/v1/audit", role: Read, do: (*Console).auditCall},
}

// nothing is what every other path leads to.
var nothing = route{role: Read, noLog: true, do: func(_ *Console, _ http.ResponseWriter, _ *http.Request, _ person) error {
	return &failure{status: http.StatusNotFound, text: "There is no such page."}
}}

// revealing is the role that a request for values needs.
func revealing(r *http.Request) Role {
	if wantsValues(r) {
		return Reveal
	}
	return Read
}

// wantsValues takes every reveal but an explicit no for a yes: a typing error must
// not slip past the role.
func wantsValues(r *http.Request) bool {
	values, given := r.URL.Query()["reveal"]
	for _, v := range values {
		if v != "false" && v != "0" {
			return true
		}
	}
	return given && len(values) == 0
}

func openOnLoopback(r *http.Request) Role {
	if open, _ := r.Context().Value(loopbackKey{}).(bool); open {
		return 0
	}
	return Read
}

// loopbackKey is the context's for whether the console listens on loopback.
type loopbackKey struct{}

// enter is the one way into a route: who asks, whether they may, and only then the
// request itself.
func (c *Console) enter(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(context.WithValue(r.Context(), loopbackKey{}, c.cfg.loopback()))
		role := rt.role
		if rt.roleFor != nil {
			role = rt.roleFor(r)
		}
		var p person
		if role > 0 {
			var err error
			if p, err = c.gate.who(r); err != nil {
				c.fail(w, r, p, err)
				return
			}
			if p.role < role {
				c.fail(w, r, p, &failure{status: http.StatusForbidden, text: "Your role does not allow this.", detail: role.String()})
				return
			}
			if role == Reveal && otherOrigin(r) {
				c.fail(w, r, p, &failure{status: http.StatusForbidden, text: "The request was made by a page of another site."})
				return
			}
		}
		if !rt.noLog && c.store() == nil {
			c.fail(w, r, p, errNoLog)
			return
		}
		if !rt.long {
			ctx, cancel := context.WithTimeout(r.Context(), answerWithin)
			defer cancel()
			r = r.WithContext(ctx)
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		if err := rt.do(c, w, r, p); err != nil {
			c.fail(w, r, p, err)
		}
	})
}

func (c *Console) healthz(w http.ResponseWriter, _ *http.Request, _ person) error {
	plain(w, http.StatusOK, "ok")
	return nil
}

var errNoLog = errors.New("the transaction log could not be opened so far")

// readyWithin is how long /readyz waits for the log.
const readyWithin = 5 * time.Second

func (c *Console) readyz(w http.ResponseWriter, r *http.Request, _ person) error {
	const not = "the transaction log cannot be reached"
	store := c.store()
	if store == nil {
		plain(w, http.StatusServiceUnavailable, not)
		return nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), readyWithin)
	defer cancel()
	answered := make(chan error, 1)
	go func() { answered <- store.Ping(ctx) }() // a driver may not look at its context
	select {
	case err := <-answered:
		if err == nil {
			plain(w, http.StatusOK, "ok")
			return nil
		}
	case <-ctx.Done():
	}
	plain(w, http.StatusServiceUnavailable, not)
	return nil
}

func (c *Console) metrics(w http.ResponseWriter, r *http.Request, _ person) error {
	if c.cfg.Metrics == nil {
		return &failure{status: http.StatusNotFound, text: "There is no such page."}
	}
	c.cfg.Metrics.ServeHTTP(w, r)
	return nil
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}

// by is who does something, for the audit.
func (p person) by(reason string) ops.By { return ops.By{Who: p.name, Reason: reason} }

func isAPI(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/api/") }
