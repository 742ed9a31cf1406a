package console

import (
	"context"
	"net/http"
	"time"
)

// readyWithin is how long /readyz waits for the log.
const readyWithin = 5 * time.Second

func (s *site) readyz(r *http.Request, _ person) (any, error) {
	if reachable(r.Context(), s.ping, readyWithin) {
		return plain(http.StatusOK, "ok"), nil
	}
	return plain(http.StatusServiceUnavailable, "the transaction log cannot be reached"), nil
}

// reachable reports whether ping succeeds in time.
func reachable(ctx context.Context, ping func(context.Context) error, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	answered := make(chan error, 1)
	go func() { answered <- ping(ctx) }() // a driver may not look at its context
	select {
	case err := <-answered:
		return err == nil
	case <-ctx.Done():
		return false
	}
}

func (s *site) metrics(*http.Request, person) (any, error) {
	if s.cfg.Metrics == nil {
		return nil, errNoPage
	}
	return s.cfg.Metrics, nil
}

// plain answers with a line of text.
func plain(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text + "\n"))
	}
}
