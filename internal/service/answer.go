package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/httpkey"
)

// StatusError is a service's answer that is no success.
type StatusError struct {
	// Status is the HTTP status.
	Status int
	// Header is the answer's.
	Header http.Header
	// Body is the answer's body, cut off after 64 KiB.
	Body []byte

	class  dialect.Class
	advice dialect.Advice
	why    string // the remedy of an operator; may be empty
	cause  error  // what bed calls it; may be nil
}

// Error names the status and the title of a problem, and no part of the request.
func (e *StatusError) Error() string {
	said := ""
	if p := e.problem(); p.Title != "" {
		said = " (" + strings.Map(printable, cut(p.Title, 200)) + ")"
	}
	return "bed: the service answered " + e.text(said)
}

func (e *StatusError) text(said string) string {
	text := strings.TrimSpace(fmt.Sprintf("%d %s", e.Status, http.StatusText(e.Status))) + said
	if e.why != "" {
		text += ": " + e.why
	}
	return text
}

func printable(r rune) rune {
	if isControl(r) {
		return ' '
	}
	return r
}

func cut(s string, most int) string { return strings.ToValidUTF8(s[:min(len(s), most)], "") }

// Certainly implements dialect.CertainClass.
func (e *StatusError) Certainly() dialect.Class { return e.class }

// Advice implements dialect.AdviceOf.
func (e *StatusError) Advice() dialect.Advice { return e.advice }

// Unwrap returns bed's own error for the answer, if any.
func (e *StatusError) Unwrap() error { return e.cause }

// Shown returns the text for a log line, without the service's own words.
func (e *StatusError) Shown() string { return "the service answered " + e.text("") }

type problem struct{ Type, Title string }

// problem reads a problem (RFC 9457).
func (e *StatusError) problem() (p problem) {
	if media, _, _ := mime.ParseMediaType(e.Header.Get("Content-Type")); media == "application/problem+json" && json.Unmarshal(e.Body, &p) != nil {
		return problem{}
	}
	return p
}

// judge gives an answer its meaning, or returns nil for a delivery. A scoped call wants an answer with a
// scope. docs/services.md has the table.
func judge(scoped bool, e *StatusError) error {
	from := e.Header.Get(httpkey.Scope) != "" // a service that recognizes keys
	said, _ := strings.CutPrefix(e.problem().Type, httpkey.Types)
	own := "" // the type of a problem of bedhttp's own
	if from {
		own = said
	}
	kept := e.Header.Get(httpkey.Kept) != "" || e.Header.Get(httpkey.Replayed) != ""
	refused := func() {
		e.class, e.advice.Final = dialect.Refused, from && (kept || own == httpkey.WasUndone)
		switch own {
		case httpkey.KeyReused:
			e.cause = dialect.ErrKeyReused
		case httpkey.WasUndone:
			e.cause = dialect.ErrVoided
		}
	}
	configuration := func(why string) { e.class, e.advice.Operator, e.why = dialect.Retryable, true, why }
	switch s := e.Status; {
	case s < 300 && scoped && !from:
		// It may be from another server in between. If not, the service may have applied it.
		configuration("the answer has no " + httpkey.Scope + ", by which a service behind bedhttp shows that it recognizes keys: something in between may have answered")
		e.class = dialect.Unknown
	case s < 300, own == httpkey.ResponseLost:
		return nil
	case s < 400:
		configuration("redirects are not followed: correct the base URL")
	case said == httpkey.MissingKey, said == httpkey.MalformedKey, said == httpkey.UnknownClient, said == httpkey.UndoUnsupported:
		configuration("something in between takes the Idempotency-Key or the credentials away, or changes them; or the service no longer lets requests be undone")
	case s == http.StatusMisdirectedRequest:
		configuration("the service has other keys than before: another database, region or account answers")
	case s == http.StatusUnauthorized, s == http.StatusForbidden, s == http.StatusNotFound, s == http.StatusMethodNotAllowed, s == http.StatusProxyAuthRequired:
		if from {
			refused()
		} else {
			configuration("look at the credentials, the base URL and what stands in between")
		}
	case own == httpkey.Outstanding, said == httpkey.TooManyRequests, own == httpkey.TryAgain, s == http.StatusTooManyRequests, s == http.StatusTooEarly:
		e.class, e.advice.Busy = dialect.Contention, true
	case own == httpkey.OutcomeUnknown:
		e.class, e.advice.Busy = dialect.Unknown, true
	case s == http.StatusRequestTimeout && !from:
		e.class = dialect.Unknown
	case s == http.StatusRequestTimeout, own == httpkey.UnreadableBody: // the connection's fault
		e.class = dialect.Retryable
	case s < 500 && (from || refusals[s] || e.problem() != problem{}):
		refused()
	case s < 500:
		configuration("nobody has said that this status refuses a call: look at what stands in between")
	case from: // its handler's, rolled back
		e.class = dialect.Retryable
	default:
		e.class = dialect.Unknown
	}
	e.advice.After = retryAfter(e.Header.Get("Retry-After"), e.Header.Get("Date"))
	return e
}

// refusals are refusals by any server.
var refusals = map[int]bool{400: true, 402: true, 409: true, 410: true, 412: true, 422: true}

// retryAfter reads a Retry-After: seconds, or a time by the clock of the server, which said date.
func retryAfter(text, date string) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	now, nerr := http.ParseTime(date)
	if errors.Join(err, nerr) != nil {
		return 0
	}
	return max(at.Sub(now), 0)
}
