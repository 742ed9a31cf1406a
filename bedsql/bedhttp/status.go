package bedhttp

import (
	"context"
	"encoding/json"
	"net/http"
	"path"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/txlog"
)

// Status answers for pending writes of the log storage: mount it at the addresses that
// Config.StatusURL gives, behind the same authentication as the rest. The last segment of
// the path is the entry's id. It waits by bedsql.Await, for at most wait, and answers
// {"entry": …, "state": …}: 200 for delivered, discarded and parked, 202 with Retry-After
// for waiting, 404 for an id of which the log knows nothing, and for what has not the form
// of one, without asking the log. 503 says that the log cannot be asked.
func Status(storage txlog.Storage, wait time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := path.Base(r.URL.Path)
		if !txlog.IsID(id) {
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
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		text, _ := json.Marshal(map[string]string{"entry": id, "state": string(state)})
		send(w, status, append(text, '\n'))
	})
}
