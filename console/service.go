package console

import (
	"context"
	"net/http"
	"time"
)

func (s service) healthz(w http.ResponseWriter, _ *http.Request, _ person) error {
	plain(w, http.StatusOK, "ok")
	return nil
}

// readyWithin is how long /readyz waits for the log.
const readyWithin = 5 * time.Second

func (s service) readyz(w http.ResponseWriter, r *http.Request, _ person) error {
	if reachable(r.Context(), s.ping, readyWithin) {
		plain(w, http.StatusOK, "ok")
		return nil
	}
	plain(w, http.StatusServiceUnavailable, "the transaction log cannot be reached")
	return nil
}

// reachable reports whether what is asked answers in time.
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

func (s service) metrics(w http.ResponseWriter, r *http.Request, _ person) error {
	if s.cfg.Metrics == nil {
		return errNoPage
	}
	s.cfg.Metrics.ServeHTTP(w, r)
	return nil
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}
