package console

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/safetext"
)

// A failure is an answer that is not what was asked for.
type failure struct {
	status int
	// text is a sentence that is translated, detail what follows it as it is.
	text, detail string
}

func (f *failure) Error() string { return strings.TrimSpace(f.text + " " + f.detail) }

func badRequest(text, detail string) error {
	return &failure{status: http.StatusBadRequest, text: text, detail: detail}
}

// failureOf says how an error is answered. What the store says of a request is
// shown; what a database said of the log is not, because it may hold anything.
func failureOf(err error) *failure {
	var f *failure
	var large *http.MaxBytesError
	status := func(code int, text string) *failure { return &failure{status: code, text: text} }
	said := func(code int, text string) *failure {
		return &failure{status: code, text: text, detail: strings.TrimPrefix(strings.TrimPrefix(err.Error(), "ops: "), "the target cannot be asked: ")}
	}
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, errNobody):
		return status(http.StatusUnauthorized, "Log in to use the console.")
	case errors.Is(err, errTooMany):
		return status(http.StatusTooManyRequests, "Too many log-ins failed: wait a little.")
	case errors.As(err, &large):
		return status(http.StatusRequestEntityTooLarge, "The request is too large.")
	case errors.Is(err, ops.ErrNotFound):
		return status(http.StatusNotFound, "The log holds no such entry: it was delivered or discarded, or the id is mistyped.")
	case errors.Is(err, ops.ErrLeased):
		return status(http.StatusConflict, "The entry is being delivered at this moment; look again in a while.")
	case errors.Is(err, ops.ErrConflict):
		return said(http.StatusConflict, "Nothing was changed:")
	case errors.Is(err, ops.ErrInvalid):
		return said(http.StatusBadRequest, "The request is not valid:")
	case errors.Is(err, ops.ErrUnknownDataSource):
		return status(http.StatusNotFound, "Neither the log nor the configuration knows this data source.")
	case errors.Is(err, ops.ErrOutcomeUnknown):
		return status(http.StatusServiceUnavailable, "It is not known whether this was done: the log did not answer. The audit tells, once it does.")
	case errors.Is(err, ops.ErrNoTarget):
		return status(http.StatusConflict, "The configuration does not say where the data source is, so nothing can be asked there.")
	case errors.Is(err, ops.ErrTarget):
		return said(http.StatusServiceUnavailable, "The data source cannot be asked:")
	case errors.Is(err, ops.ErrNoTables):
		return said(http.StatusServiceUnavailable, "The log's database lacks what the console needs:")
	default:
		return &failure{status: http.StatusServiceUnavailable, text: "The transaction log or the data source cannot be reached, or did not answer in time."}
	}
}

// fail answers with an error, as a page or in JSON.
func (s *site) fail(w http.ResponseWriter, r *http.Request, p person, err error) {
	if clientGone(r) {
		return
	}
	f := failureOf(err)
	if f.status >= 500 {
		s.log.WithField("path", safetext.Line(r.URL.Path)).Warnf("the console could not answer: %s", dberr.DescribeLog(err))
	}
	switch f.status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Basic realm="bed", charset="UTF-8"`)
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", "10")
	}
	if isAPI(r) {
		writeJSON(w, f.status, map[string]string{"error": f.Error()})
		return
	}
	s.render(w, r, p, f.status, "error", errorPage{f.text, f.detail})
}

// writeJSON answers with v.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	_ = enc.Encode(v)
}
