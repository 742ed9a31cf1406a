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
	const not = "the transaction log cannot be reached"
	store := s.store()
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

func (s service) metrics(w http.ResponseWriter, r *http.Request, _ person) error {
	if s.cfg.Metrics == nil {
		return noSuchPage()
	}
	s.cfg.Metrics.ServeHTTP(w, r)
	return nil
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}
