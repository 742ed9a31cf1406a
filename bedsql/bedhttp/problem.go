package bedhttp

import (
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/httpkey"
)

// problem is an answer of the middleware's own, as application/problem+json (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`

	retry bool // sending it again later may help
}

var (
	missing     = problem{Type: httpkey.MissingKey, Title: "Idempotency-Key is missing", Status: http.StatusBadRequest, Detail: "This request must carry an Idempotency-Key header."}
	malformed   = problem{Type: httpkey.MalformedKey, Title: "Idempotency-Key is malformed", Status: http.StatusBadRequest}
	noClient    = problem{Type: httpkey.UnknownClient, Title: "The client is unknown", Status: http.StatusForbidden, Detail: "It is not known whose Idempotency-Key this is."}
	bodyBroken  = problem{Type: httpkey.UnreadableBody, Title: "The request's body cannot be read", Status: http.StatusBadRequest, Detail: "The body ended early or is malformed. This attempt changed nothing."}
	bodyLarge   = problem{Type: "body-too-large", Title: "The request's body is too large", Status: http.StatusRequestEntityTooLarge, Detail: "A request with an Idempotency-Key must have a smaller body. This attempt changed nothing."}
	outstanding = problem{Type: httpkey.Outstanding, Title: "The request is still being handled", Status: http.StatusConflict, retry: true,
		Detail: "A request with this Idempotency-Key has not ended yet, or its database is busy. Send it again later."}
	unknown = problem{Type: httpkey.OutcomeUnknown, Title: "It is not known yet whether the request was applied", Status: http.StatusServiceUnavailable, retry: true,
		Detail: "The database did not say whether it applied the request. Send it again with the same Idempotency-Key: if it was applied, you get its response; if not, it is applied then."}
	crowded = problem{Type: httpkey.TooManyRequests, Title: "Too many requests of this client are being handled", Status: http.StatusServiceUnavailable, retry: true,
		Detail: "This attempt changed nothing; an earlier one may have. Send it again later with the same Idempotency-Key."}
	exhausted = problem{Type: "too-many-keys", Title: "This client has sent too many new keys", Status: http.StatusTooManyRequests, retry: true,
		Detail: "This attempt changed nothing. Keys that were used before are still answered. Send it again later with the same Idempotency-Key."}
	reused = problem{Type: httpkey.KeyReused, Title: "Idempotency-Key was used for another request", Status: http.StatusUnprocessableEntity,
		Detail: "The method, path, query, content type or body differs from the first request with this Idempotency-Key. Use a new key."}
	refused = problem{Type: "refused", Title: "The database refused the request", Status: http.StatusConflict, Detail: "This attempt changed nothing in the service's own database, and sending it again as it is does not help."}
	retry   = problem{Type: httpkey.TryAgain, Title: "The request could not be handled now", Status: http.StatusServiceUnavailable, retry: true,
		Detail: "This attempt changed nothing in the service's own database; an earlier one may have. Send it again later with the same Idempotency-Key."}
	unreadable = problem{Type: httpkey.ResponseLost, Title: "The response cannot be read", Status: http.StatusInternalServerError, Detail: "The request was applied; its response is lost."}
	broken     = problem{Type: "server-error", Title: "The server could not handle the request", Status: http.StatusInternalServerError, Detail: "This attempt changed nothing in the service's own database."}
	undone     = problem{Type: httpkey.WasUndone, Title: "The request was undone, or never will be applied", Status: http.StatusConflict,
		Detail: "Another request has undone this Idempotency-Key. This attempt changed nothing, and no later one will."}
	otherScope = problem{Type: "other-scope", Title: "Other keys answer here", Status: http.StatusMisdirectedRequest,
		Detail: "The Idempotency-Scope differs from the one here: the request, or the one to undo, is for another client, service or database. This attempt changed nothing."}
	forgotten = problem{Type: "forgotten", Title: "It is not known here whether there is anything to undo", Status: http.StatusConflict,
		Detail: "What is known here of the request to undo does not decide whether it was applied: it is too old, or its response is not here. This attempt changed nothing. An operator has to look."}
	malformedUndo   = problem{Type: "malformed-undo", Title: "The undo is malformed", Status: http.StatusBadRequest}
	undoUnsupported = problem{Type: httpkey.UndoUnsupported, Title: "Requests cannot be undone here", Status: http.StatusBadRequest,
		Detail: "The request carries headers of an undo (Idempotency-Undoes), and this service undoes no requests by them. This attempt changed nothing."}
	undoForbidden = problem{Type: "undo-forbidden", Title: "This client may not undo requests", Status: http.StatusForbidden, Detail: "This attempt changed nothing."}
	noEntry       = problem{Type: "unknown-entry", Title: "There is no such entry", Status: http.StatusNotFound, Detail: "The last segment of the path is not the id of an entry."}
	unasked       = problem{Type: "state-unknown", Title: "The state of the write cannot be found out now", Status: http.StatusServiceUnavailable, retry: true, Detail: "Ask again later."}
)

// because is the problem with a detail.
func (p problem) because(why string) *problem {
	p.Detail = why
	return &p
}

// answering makes a handler of handle, which answers itself or returns a problem with its cause. The
// handler sends the problem. The cause goes to OnError.
func (m *middleware) answering(handle func(http.ResponseWriter, *http.Request) (*problem, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, cause := handle(w, r)
		if cause != nil && m.OnError != nil {
			m.OnError(r, cause)
		}
		if p != nil {
			m.Counters.count(p)
			p.because(p.Detail + m.expiry).send(w)
		}
	})
}

func (p problem) send(w http.ResponseWriter) {
	p.Type = httpkey.Types + p.Type
	if p.retry {
		w.Header().Set("Retry-After", "1")
	}
	kind := "application/json"
	if p.Status >= 300 {
		kind = "application/problem+json"
	}
	sendJSON(w, p.Status, kind, p)
}

// sendJSON sends v, which no cache keeps.
func sendJSON(w http.ResponseWriter, status int, kind string, v any) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Cache-Control", "no-store")
	text, _ := json.Marshal(v)
	send(w, status, append(text, '\n'))
}

// details are Error's texts on outcomes.
var details = map[bedsql.Outcome]string{
	bedsql.OutcomeDelivered:     "It is applied.",
	bedsql.OutcomeAccepted:      "It is logged and will be delivered, or an operator decides. Do not send it as a new request.",
	bedsql.OutcomeRefused:       "Nothing of it is applied, and sending it again as it is does not help.",
	bedsql.OutcomeNotAccepted:   "Nothing of it is applied. Send it again later.",
	bedsql.OutcomePartlyRefused: "A part of it was refused, the rest is applied or will be.",
	bedsql.OutcomeCompensated:   "Its applied writes have been compensated.",
	bedsql.OutcomeUnknown:       "It is not known whether it is applied. Send it again with the same Idempotency-Key.",
}

// StatusOf returns the HTTP status for an outcome: 200, 202, 409, 503, 207, 409 and 500, in the
// order of the constants.
func StatusOf(o bedsql.Outcome) int {
	statuses := [...]int{200, 202, 409, 503, 207, 409, 500}
	return statuses[min(o, bedsql.OutcomeUnknown)]
}

// Error answers an error of a write or an End of bedsql with the status of its outcome
// (bedsql.OutcomeOf). The answer is a problem without the error's text, which may hold values. A
// refusal by the service's own mistake (a missing column or table, a syntax error, a missing
// right) is answered 500. A pending write is answered 202. If Config.StatusURL is set and r has
// passed the middleware, Location names the address of Status for the entry, unless several
// entries are pending.
//
// While the request's transaction ([Tx]) is open, its rows are not applied, whatever err says.
// Error rolls it back, and only the request's own outcome counts: 409 for a refused or compensated
// write, 503 for an error that may pass (a deadlock, a lost connection), 500 for an error of Scan,
// sql.ErrNoRows among them, and for the handler's own errors. The rows commit only after a pending
// write outside that transaction, and after an End with a partial refusal.
func Error(w http.ResponseWriter, r *http.Request, err error) {
	o := bedsql.OutcomeOf(err)
	p := problem{Type: "outcome", Title: "The request is " + o.String(), Status: StatusOf(o), Detail: details[o], retry: o == bedsql.OutcomeNotAccepted}
	if o == bedsql.OutcomeRefused && (dialect.MistakeOf(err) || errors.Is(err, bedsql.ErrOutsideRequest)) {
		p.Status, p.Detail = http.StatusInternalServerError, "Nothing of it is applied. The service has made a mistake."
	}
	q, _ := r.Context().Value(requestKey{}).(*request)
	if q != nil && q.tx != nil {
		if err != nil && o != bedsql.OutcomeAccepted && o != bedsql.OutcomePartlyRefused {
			p = rolledBack(p, o, err, q.tx.Rollback()) // a 4xx is kept alone
		}
		p.Detail += q.m.expiry
	}
	if id := entryOf(err); q != nil && q.m.StatusURL != nil && o == bedsql.OutcomeAccepted && id != "" {
		w.Header().Set("Location", q.m.StatusURL(id))
	}
	p.send(w)
}

// rolledBack is the answer to an error of outcome o inside the request's transaction. end is the
// error of its ROLLBACK; p is the answer to o outside.
func rolledBack(p problem, o bedsql.Outcome, err, end error) problem {
	switch {
	case o == bedsql.OutcomeRefused, o == bedsql.OutcomeCompensated:
		return p
	case errors.Is(err, bedsql.ErrUnknownOutcome): // of another write, or a procedure has ended the transaction
		p.Status, p.retry = http.StatusServiceUnavailable, true
		return p
	case o == bedsql.OutcomeNotAccepted, o == bedsql.OutcomeUnknown && end != nil && !errors.Is(end, sql.ErrTxDone): // the session is gone
		return retry
	default:
		return broken
	}
}

// entryOf returns the id of the entry that err reports as pending; empty if there is no known
// entry, or several.
func entryOf(err error) string {
	var (
		end *bedsql.EndError
		one *bedsql.PendingError
	)
	if !errors.As(err, &one) {
		return ""
	}
	if errors.As(err, &end) {
		for _, p := range end.Pending() {
			if p.EntryID != one.EntryID {
				return ""
			}
		}
	}
	return one.EntryID
}
