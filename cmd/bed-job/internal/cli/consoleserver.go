package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/console"
	"github.com/bedsql/bed/internal/logmetrics"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/bedprom"
	"github.com/bedsql/bed/listener/delivery"
)

// A consoleServer serves the console, the metrics, or both, even before the log is open: the console
// should show a log that is down.
type consoleServer struct {
	// stores are those of the logs, in their order; nil while one is not open.
	stores  []*atomic.Pointer[ops.Store]
	console *console.Console
	servers []*http.Server
	// ended gets the error of each server.
	ended chan error
	// bus carries a job's events to the metrics.
	bus     *listener.Bus
	metrics *bedprom.Collector
	logger  *logrus.Logger
}

const (
	headerWithin = 10 * time.Second
	readWithin   = 30 * time.Second
	writeWithin  = 60 * time.Second
	idleFor      = 2 * time.Minute
	endWithin    = 5 * time.Second
	readyWithin  = 5 * time.Second
)

// serveConsole begins to serve the console at cfg.Listen, and the metrics alone at metrics; either
// address may be empty. It fails at once if it cannot listen.
func serveConsole(ctx context.Context, cfg console.Config, metrics string, logs []dataSource, logger *logrus.Logger) (_ *consoleServer, err error) {
	s := &consoleServer{ended: make(chan error, 2), bus: listener.NewBus(logger), logger: logger}
	var (
		shown []console.Log
		names []string
	)
	for _, l := range logs {
		store := &atomic.Pointer[ops.Store]{}
		s.stores, names = append(s.stores, store), append(names, logName(l, len(logs) > 1))
		shown = append(shown, console.Log{Name: l.name, Store: func() console.Store {
			if opened := store.Load(); opened != nil {
				return opened
			}
			return nil
		}})
	}
	s.metrics = bedprom.New(s.bus)
	defer func() {
		if err != nil {
			s.end()
		}
	}()
	cfg.Logger, cfg.Metrics = logger, bedprom.Handler(s.metrics, logmetrics.New(askLogs(names, s.stores), 0))
	if cfg.Listen != "" {
		if err := s.serve(ctx, "console", cfg.Listen, func(address string) (http.Handler, error) {
			cfg.Listen = address
			s.console, err = console.NewOn(cfg, shown...)
			return s.console, err
		}); err != nil {
			return nil, err
		}
	}
	if metrics != "" {
		return s, s.serve(ctx, "metrics", metrics, func(string) (http.Handler, error) { return s.scraped(cfg.Metrics), nil })
	}
	return s, nil
}

// serve serves the handler for the address, of which the system may have chosen the port.
func (s *consoleServer) serve(ctx context.Context, what, listen string, handler func(address string) (http.Handler, error)) error {
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("%s.listen: %w", what, err)
	}
	host, _, _ := net.SplitHostPort(listen)
	_, port, _ := net.SplitHostPort(socket.Addr().String())
	h, err := handler(net.JoinHostPort(host, port))
	if err != nil {
		_ = socket.Close()
		return err
	}
	quiet := s.logger.WriterLevel(logrus.DebugLevel)
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: headerWithin, ReadTimeout: readWithin, WriteTimeout: writeWithin, IdleTimeout: idleFor,
		MaxHeaderBytes: 64 << 10, ErrorLog: log.New(quiet, "", 0),
	}
	s.servers = append(s.servers, server)
	if host == "" || net.ParseIP(host) != nil && net.ParseIP(host).IsUnspecified() {
		host = "localhost"
	}
	go func() {
		defer func() { _ = quiet.Close() }()
		err := server.Serve(socket)
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		s.ended <- err
	}()
	s.logger.WithField("url", "http://"+net.JoinHostPort(host, port)+"/").Info("serving the " + what)
	return nil
}

// scraped is the handler of the metrics alone, under any Host and without a log-in.
func (s *consoleServer) scraped(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if !s.reachable(r.Context()) {
			http.Error(w, "the transaction log cannot be reached", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	return mux
}

// reachable reports whether all logs answer in time.
func (s *consoleServer) reachable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	answers := make(chan error, len(s.stores)) // a driver may not look at its context
	for _, store := range s.stores {
		go func() {
			if opened := store.Load(); opened != nil {
				answers <- opened.Ping(ctx)
				return
			}
			answers <- errNotOpen
		}()
	}
	for range s.stores {
		select {
		case err := <-answers:
			if err != nil {
				return false
			}
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// ready gives the console the i-th of its logs.
func (s *consoleServer) ready(i int, log boundedLog, cfg ops.Config) error {
	store, err := newStore(log, cfg)
	s.stores[i].Store(store)
	return err
}

// end waits for running answers, but not for streams.
func (s *consoleServer) end() {
	if s == nil {
		return
	}
	if s.console != nil {
		s.console.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), endWithin)
	defer cancel()
	for _, server := range s.servers {
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
	}
	for range s.servers {
		if err := <-s.ended; err != nil {
			s.logger.WithError(err).Error("the console, or the metrics, ended too early")
		}
	}
	s.metrics.Close()
}

// opsConfig configures the console's store.
func opsConfig(a *app, cfg *config) ops.Config {
	c := ops.Config{
		Targets: map[string]delivery.Target{}, Problems: map[string]string{},
		MinAge: max(cfg.job.WithDefaults().MaxDeliveryTryDelay, 0), AnswerWithin: a.logTimeout,
		Clean: a.redact,
	}
	for _, s := range cfg.targets {
		err := s.problem
		if err == nil {
			c.Targets[s.name], err = s.target()
		}
		if err != nil {
			delete(c.Targets, s.name)
			c.Problems[s.name] = a.redact(err.Error())
		}
	}
	return c
}
