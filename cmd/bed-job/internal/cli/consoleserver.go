package cli

import (
	"context"
	"errors"
	"fmt"
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

// A consoleServer serves the console even before the log is open: the console should show a log
// that is down.
type consoleServer struct {
	// stores are those of the logs, in their order; nil while one is not open.
	stores  []*atomic.Pointer[ops.Store]
	console *console.Console
	server  *http.Server
	ended   chan error
	// bus carries a job's events to the metrics.
	bus     *listener.Bus
	metrics *bedprom.Collector
	// URL is where it is.
	URL    string
	logger *logrus.Logger
}

const (
	headerWithin = 10 * time.Second
	readWithin   = 30 * time.Second
	writeWithin  = 60 * time.Second
	idleFor      = 2 * time.Minute
	endWithin    = 5 * time.Second
)

// serveConsole begins to serve. It fails at once if it cannot listen on the address.
func serveConsole(ctx context.Context, cfg console.Config, logs []dataSource, logger *logrus.Logger) (*consoleServer, error) {
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("console.listen: %w", err)
	}
	// The port may have been chosen by the system.
	host, _, _ := net.SplitHostPort(cfg.Listen)
	_, port, _ := net.SplitHostPort(socket.Addr().String())
	cfg.Listen = net.JoinHostPort(host, port)
	cfg.Logger = logger
	s := &consoleServer{ended: make(chan error, 1), bus: listener.NewBus(logger), logger: logger}
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
	cfg.Metrics = bedprom.Handler(s.metrics, logmetrics.New(askLogs(names, s.stores), 0))
	if s.console, err = console.NewOn(cfg, shown...); err != nil {
		s.metrics.Close()
		_ = socket.Close()
		return nil, err
	}
	quiet := logger.WriterLevel(logrus.DebugLevel)
	s.server = &http.Server{
		Handler: s.console, ReadHeaderTimeout: headerWithin, ReadTimeout: readWithin, WriteTimeout: writeWithin, IdleTimeout: idleFor,
		MaxHeaderBytes: 64 << 10, ErrorLog: log.New(quiet, "", 0),
	}
	s.server.RegisterOnShutdown(s.console.Close)
	if host == "" || net.ParseIP(host) != nil && net.ParseIP(host).IsUnspecified() {
		host = "localhost"
	}
	s.URL = "http://" + net.JoinHostPort(host, port) + "/"
	go func() {
		defer func() { _ = quiet.Close() }()
		err := s.server.Serve(socket)
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		s.ended <- err
	}()
	logger.WithField("url", s.URL).Info("the console is served")
	return s, nil
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
	s.console.Close()
	ctx, cancel := context.WithTimeout(context.Background(), endWithin)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		_ = s.server.Close()
	}
	if err := <-s.ended; err != nil {
		s.logger.WithError(err).Error("the console ended by itself")
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
