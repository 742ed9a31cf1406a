package bedhttp

import (
	"context"
	"net/http"
	"path"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

// Status answers for pending writes of the log storage. Mount it at the addresses of
// Config.StatusURL, behind the same authentication as the rest. The last segment of the path is
// the entry id. Status calls bedsql.Await, for at most wait, and answers {"entry": …, "state": …}.
// The status is 200 for delivered, discarded and parked, and 202 with Retry-After for waiting. It
// is 404 for an id unknown to the log, and for a malformed id without asking the log. It is 503 if
// the log does not answer.
func Status(storage txlog.Storage, wait time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := path.Base(r.URL.Path)
		if !entry.IsID(id) {
			noEntry.send(w)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), wait)
		defer cancel()
		state, err := bedsql.Await(ctx, storage, id)
		if err != nil {
			fresh, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 5*time.Second)
			defer cancel()
			if state, err = bedsql.Status(fresh, storage, id); err != nil {
				unasked.send(w)
				return
			}
		}
		status := http.StatusOK
		switch state {
		case bedsql.StateUnknown:
			status = http.StatusNotFound
		case bedsql.StateWaiting:
			status = http.StatusAccepted
			w.Header().Set("Retry-After", "1")
		}
		sendJSON(w, status, "application/json", map[string]string{"entry": id, "state": string(state)})
	})
}
