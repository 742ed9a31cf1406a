package bedhttp

import (
	"context"
	"database/sql"
	"encoding/json"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/bedsql/bed/bedsql/internal/kept"
	"github.com/bedsql/bed/internal/httpkey"
	"github.com/bedsql/bed/internal/keyed"
)

// undo is a request's wish to undo another one of its client, and the decision about it.
type undo struct {
	keyed.Undo
	given   string // the other's key
	scope   string
	sent    time.Time
	applied bool

	undone  string   // httpkey.Done: the handler runs
	problem *problem // nothing changes
	cause   error
}

// undoOf reads the headers of an undo; nil for any other request. It returns the problem to answer
// with, if it has one. A header of an undo without Idempotency-Undoes has lost it on its way, and its
// handler must not run as for a new request.
func (m *middleware) undoOf(r *http.Request, key string) (*undo, *problem) {
	h := r.Header
	switch {
	case len(h[httpkey.Undoes])+len(h[httpkey.Sent])+len(h[httpkey.Applied]) == 0:
		return nil, nil
	case m.Undo == nil:
		return nil, &undoUnsupported
	case Key(r.Context()) != "": // the middleware around this one has seen to it
		return nil, nil
	case !m.Undo(r):
		return nil, &undoForbidden
	}
	other, given, err := keyOf(h, httpkey.Undoes)
	u, why := &undo{given: other}, ""
	scopes, sent, applied := h[httpkey.Scope], h[httpkey.Sent], h[httpkey.Applied]
	switch {
	case !given:
		why = "The Idempotency-Undoes header is missing."
	case err != nil:
		why = err.Error()
	case !slices.Contains(m.Methods, r.Method):
		why = "The method " + r.Method + " carries no Idempotency-Key, under which a request could be undone once."
	case other == key:
		why = "A request cannot undo itself: Idempotency-Undoes needs a key other than Idempotency-Key."
	case len(scopes) != 1 || scopes[0] == "":
		why = "It needs one Idempotency-Scope header, with the scope of the request to undo."
	case len(sent) != 1:
		why = "It needs one Idempotency-Undoes-Sent header, with the time of the request to undo."
	case len(applied) > 1 || len(applied) == 1 && applied[0] != httpkey.No && applied[0] != httpkey.Yes:
		why = "Idempotency-Undoes-Applied must be ?0 or ?1."
	default:
		u.scope, u.applied = scopes[0], len(applied) == 1 && applied[0] == httpkey.Yes
		if u.sent, err = time.Parse(httpkey.SentFormat, sent[0]); err != nil {
			why = "Idempotency-Undoes-Sent must be a time of RFC 3339 in UTC with milliseconds, such as 2006-01-02T15:04:05.000Z."
		}
	}
	if why != "" {
		return nil, malformedUndo.because(why)
	}
	return u, nil
}

// maxMargin is how far the clocks of the caller and of the database may differ, but at most a tenth
// of the retention.
const maxMargin = time.Hour

// forgets reports whether the receipt of a request first sent then may be purged by now. It also
// does if the caller's clock is wrong.
func (m *middleware) forgets(sent, now time.Time) bool {
	margin := min(maxMargin, m.retention/10)
	age := now.Sub(sent)
	return age < -margin || age > m.retention-margin
}

// decide decides about an undo, after the receipt of the other request is locked.
func (x *exchange) decide(ctx context.Context, found keyed.Undone) (void bool) {
	u := x.undo
	u.undone, u.problem, u.cause = "", nil, nil
	switch {
	case found.Home == "" || x.scopeIn(found.Home, x.client) != u.scope:
		u.problem = &otherScope
	case found.Void && !found.Inserted:
		u.undone = httpkey.Already
	case x.forgets(u.sent, found.Now), found.Inserted && u.applied:
		u.problem = &forgotten
	case found.Inserted:
		u.undone = httpkey.Nothing
	default:
		x.decideApplied(ctx, found)
	}
	return u.undone == httpkey.Done || u.undone == httpkey.Nothing
}

// decideApplied is decide for a request with a stored response.
func (x *exchange) decideApplied(ctx context.Context, found keyed.Undone) {
	u := x.undo
	r, err := decode(found.Answer.Response)
	switch {
	case err != nil:
		u.problem, u.cause = &unreadable, err
	case slices.ContainsFunc(r.Header, func(l headerLine) bool { return l.Name == httpkey.Undone }):
		u.problem = malformedUndo.because("Idempotency-Undoes names a request that undoes another one.")
	case r.Status < 300 && found.Answer.Undoable:
		u.undone = httpkey.Done
		if len(found.Answer.Entries) == 0 {
			return
		}
		// The writes of the undo would overtake an entry in the log.
		if waiting, err := u.Waiting(ctx, found.Answer.Entries); err != nil {
			u.undone, u.problem, u.cause = "", &retry, err
		} else if waiting {
			u.undone, u.problem = "", &outstanding
		}
	case r.Status < 300, u.applied: // it may have written elsewhere; or another answer was seen
		u.problem = &forgotten
	default:
		u.undone = httpkey.Nothing
	}
}

// leadOver waits until no other request of this process has to do with the key to undo, and takes that
// key's flight: the others then wait without a connection. It returns false if Wait is over.
func (x *exchange) leadOver(wait context.Context) bool {
	for {
		f, leads := board(x.DB, x.undo.Key, undoing, nil)
		if leads {
			x.undoes = f
			return true
		}
		select {
		case <-f.landed:
		case <-wait.Done():
			return false
		}
	}
}

// decided ends an undo that needs no handler.
func (x *exchange) decided(t *keyedTx) (*problem, error) {
	u := x.undo
	if u.problem != nil {
		return u.problem, u.cause
	}
	body, _ := json.Marshal(map[string]string{"undone": u.undone})
	h := http.Header{"Content-Type": {"application/json"}}
	body = finish(x.r.Method, http.StatusOK, h, append(body, '\n'))
	h.Set(httpkey.Undone, u.undone)
	return x.commit(t, keep(http.StatusOK, h, x.headers, body), h)
}

// scopeIn is the scope of a client's keys in the database that home identifies.
func (m *middleware) scopeIn(home, client string) string {
	return digest([]byte(m.Service), []byte(client), []byte(home))
}

// home is what identifies a database, which is asked once a process.
type home struct {
	known  atomic.Pointer[string]
	asking chan struct{} // room for one
}

var homes sync.Map // *home by weak.Pointer[sql.DB]

// homeOf returns the home of db, the same for all middlewares.
func homeOf(db *sql.DB) *home {
	at := weak.Make(db)
	h, there := homes.LoadOrStore(at, &home{asking: make(chan struct{}, 1)})
	if !there {
		runtime.AddCleanup(db, func(at weak.Pointer[sql.DB]) { homes.Delete(at) }, at)
	}
	return h.(*home)
}

// of returns what identifies db.
func (h *home) of(ctx context.Context, db *sql.DB) (string, error) {
	if known := h.known.Load(); known != nil {
		return *known, nil
	}
	select {
	case h.asking <- struct{}{}:
		defer func() { <-h.asking }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if known := h.known.Load(); known != nil {
		return *known, nil
	}
	return h.ask(ctx, db)
}

// ask asks db, whose connections may lead to another database than before.
func (h *home) ask(ctx context.Context, db *sql.DB) (string, error) {
	text, err := kept.Home(ctx, db)
	if err != nil && ctx.Err() == nil { // a connection that broke, or another process making the identity
		text, err = kept.Home(ctx, db)
	}
	switch {
	case err != nil:
		return "", err
	case text == "":
		return "", errNotBed
	}
	h.known.Store(&text)
	return text, nil
}

// Scope makes a handler for callers that want to know, before they send a request, whether it can be
// undone. Mount it at a path of its own, behind the authentication of the keyed requests; cfg is the
// Config of their middleware. It answers any method, for the owner by Config.Client:
//
//	Idempotency-Scope: 3b0c…            {"scope": "3b0c…",
//	Idempotency-Undo: ?1                 "undo": true,
//	Idempotency-Key-Retention: 604800    "keyRetention": 604800}
//
// The scope names the place of the owner's keys: the service, the database and the owner. Undo
// reports whether Config.Undo allows this request to undo others. The retention is in seconds. The
// status is 403 without an owner, and 503 with Retry-After if the database does not answer within
// Config.Wait. Scope returns the same errors as New.
func Scope(cfg Config) (http.Handler, error) {
	m, err := configure(cfg)
	if err != nil {
		return nil, err
	}
	return m.answering(m.serveScope), nil
}

func (m *middleware) serveScope(w http.ResponseWriter, r *http.Request) (*problem, error) {
	client := m.Client(r)
	if client == "" {
		return &noClient, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), m.Wait)
	defer cancel()
	home, err := m.home.ask(ctx, m.DB)
	if err != nil {
		return notBegun(err, false), err
	}
	seconds := int64(m.retention / time.Second)
	said := struct {
		Scope        string `json:"scope"`
		Undo         bool   `json:"undo"`
		KeyRetention int64  `json:"keyRetention"`
	}{m.scopeIn(home, client), m.Undo != nil && m.Undo(r), seconds}
	h := w.Header()
	h.Set(httpkey.Scope, said.Scope)
	h.Set(httpkey.MayUndo, map[bool]string{true: httpkey.Yes, false: httpkey.No}[said.Undo])
	h.Set(httpkey.Retention, strconv.FormatInt(seconds, 10))
	sendJSON(w, http.StatusOK, "application/json", said)
	return nil, nil
}
