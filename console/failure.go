package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/safetext"
	"github.com/bedsql/bed/txlog"
)

// A failure is an error answer.
type failure struct {
	status int
	// text is a translated sentence, detail an untranslated addition.
	text, detail string
}

func (f *failure) Error() string { return strings.TrimSpace(f.text + " " + f.detail) }

// answers map errors of the store to answers. detailed adds the store's own text about the request.
var answers = []struct {
	err      error
	status   int
	text     string
	detailed bool
}{
	{err: txlog.ErrNotFound, status: http.StatusNotFound, text: "The log holds no such entry: it was delivered or discarded, or the id is mistyped."},
	{err: txlog.ErrLeased, status: http.StatusConflict, text: "The entry is being delivered at this moment; look again in a while."},
	{err: txlog.ErrGroup, status: http.StatusConflict, text: "The entry belongs to a compensable group: compensate the whole group, or retry the entry."},
	{err: txlog.ErrNotFirst, status: http.StatusConflict, text: "The entry is not the first one under an order key, so no other waits for it."},
	{err: ops.ErrInvalid, status: http.StatusBadRequest, text: "The request is not valid:", detailed: true},
	{err: ops.ErrNotAmendable, status: http.StatusConflict, text: "The entry cannot be amended:", detailed: true},
	{err: ops.ErrUnknownDataSource, status: http.StatusNotFound, text: "Neither the log nor the configuration knows this data source."},
	{err: txlog.ErrUnconfirmed, status: http.StatusServiceUnavailable, text: "It is not known whether this was done: the log did not answer. The audit tells, once it does."},
	{err: ops.ErrNoTarget, status: http.StatusConflict, text: "The configuration does not say where the data source is, so nothing can be asked there."},
	{err: ops.ErrTarget, status: http.StatusServiceUnavailable, text: "The data source cannot be asked:", detailed: true},
	{err: ops.ErrNoTables, status: http.StatusServiceUnavailable, text: "The log's database lacks what the console needs:", detailed: true},
}

var (
	errNobody   = &failure{status: http.StatusUnauthorized, text: "Log in to use the console."}
	errTooMany  = &failure{status: http.StatusTooManyRequests, text: "Too many log-ins failed: wait a little."}
	errNoPage   = &failure{status: http.StatusNotFound, text: "There is no such page."}
	errNoAction = &failure{status: http.StatusNotFound, text: "There is no such action."}
	errForeign  = &failure{status: http.StatusForbidden, text: "The request was made by a page of another site. If that is the console's own address, add it to allowedHosts."}
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ops.ErrInvalid, fmt.Sprintf(format, args...))
}

// failureOf returns the answer to an error. It shows the store's text about a request, but not a
// database's text about the log: that could hold anything.
func failureOf(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return &failure{status: http.StatusRequestEntityTooLarge, text: "The request is too large."}
	}
	for _, a := range answers {
		if !errors.Is(err, a.err) {
			continue
		}
		f = &failure{status: a.status, text: a.text}
		if a.detailed {
			f.detail = strings.TrimPrefix(strings.TrimPrefix(err.Error(), a.err.Error()), ": ")
		}
		return f
	}
	return &failure{status: http.StatusServiceUnavailable, text: "The transaction log or the data source cannot be reached, or did not answer in time."}
}

// fail answers with an error, as a page or in JSON.
func (s *site) fail(w http.ResponseWriter, r *http.Request, p person, err error) {
	if context.Cause(r.Context()) == context.Canceled { //nolint:errorlint // the server's own
		return // nobody waits for the answer any more
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
	// Temporary failures are worth another request.
	again := f.status == http.StatusServiceUnavailable && r.Method == http.MethodGet
	s.render(w, r, p, errorPage{f.text, f.detail, again, f.status})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	_ = enc.Encode(v)
}
