package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/bedsql/bed/console"
	"github.com/bedsql/bed/internal/logmetrics"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/bedprom"
	"github.com/bedsql/bed/listener/delivery"
)

func consoleCommand(a *app) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Serve the web console and its JSON API, without a job",
		Long: `Serve the web console and its JSON API until SIGINT, SIGTERM or SIGHUP. They show the
log's entries, the reasons of stuck ones and the effect of a retry, and offer the actions
to clear them. No job runs here; "bed-job run" serves the same if its configuration has
console.listen.

The section console of the configuration sets the address and the users:

    console:
      listen: "127.0.0.1:8390"
      users:  [{name: ann, passwordHash: "${ANN_HASH}", role: operate}]
      tokens: [{name: grafana, tokenHash: "${TOKEN_SHA256}", role: read}]

Several logs (transactionLogDataSource as a list) are shown together, and each by itself;
--log shows one alone.

Without users and tokens it listens on loopback only, and every user there has all
roles.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runConsole(cmd.Context(), a, listen) },
	}
	a.configFlags(cmd)
	cmd.Flags().StringVar(&listen, "listen", "", "the address to listen on (default: console.listen, else "+DefaultListen+")")
	return cmd
}

func runConsole(ctx context.Context, a *app, listen string) error {
	cfg, err := a.readConfig(logTargetsAndConsole)
	if err != nil {
		return err
	}
	where := cfg.console
	where.Listen = cmp.Or(listen, where.Listen, DefaultListen)
	if err := where.Validate(); err != nil {
		return err
	}
	logger, err := a.logger()
	if err != nil {
		return err
	}
	served, err := serveConsole(ctx, where, "", cfg.logs, logger)
	if err != nil {
		return err
	}
	defer served.end()
	ctx, cancel := context.WithCancelCause(ctx)
	var open sync.WaitGroup
	defer open.Wait()
	defer cancel(nil)
	for i, l := range cfg.logs {
		open.Go(func() {
			log, ok, err := a.openForRun(ctx, l, false, true, logger)
			if ok {
				defer func() { _ = log.Close() }()
				err = served.ready(i, log, opsConfig(a, cfg))
			}
			if err != nil {
				cancel(err)
			}
			<-ctx.Done()
		})
	}
	select {
	case <-ctx.Done():
		if err := context.Cause(ctx); !errors.Is(err, ctx.Err()) {
			return err
		}
		logger.Info("the console has ended")
		return nil
	case err := <-served.ended:
		served.ended <- nil
		return err
	}
}

// A consoleServer serves the console, the metrics, or both. They show a log that is down, too.
type consoleServer struct {
	// stores are those of the logs, in their order; nil while one is not open.
	stores  []atomic.Pointer[ops.Store]
	console *console.Console
	servers []*http.Server
	ended   chan error // of each server
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
)

// serveConsole begins to serve the console at cfg.Listen, and the metrics alone at metrics; either
// address may be empty. It fails at once if it cannot listen.
func serveConsole(ctx context.Context, cfg console.Config, metrics string, logs []dataSource, logger *logrus.Logger) (s *consoleServer, err error) {
	s = &consoleServer{ended: make(chan error, 2), bus: listener.NewBus(logger), logger: logger}
	s.stores = make([]atomic.Pointer[ops.Store], len(logs))
	shown, labels := make([]console.Log, len(logs)), make([]string, len(logs))
	for i, l := range logs {
		if labels[i] = l.name; len(logs) == 1 {
			labels[i] = cmp.Or(l.named(), l.name) // the same in every process on that log
		}
		shown[i] = console.Log{Name: l.name, Store: s.stores[i].Load}
	}
	s.metrics = bedprom.New(s.bus)
	cfg.Logger, cfg.Metrics = logger, bedprom.Handler(s.metrics, logmetrics.New(askLogs(labels, s.stores)))
	construct := func(listen string) (_ http.Handler, err error) {
		cfg.Listen = listen
		s.console, err = console.NewOn(cfg, shown...)
		return s.console, err
	}
	if cfg.Listen != "" {
		err = s.serve(ctx, "console", cfg.Listen, construct)
	} else {
		_, err = construct(DefaultListen) // for the probes; nobody listens there
	}
	if err == nil && metrics != "" {
		err = s.serve(ctx, "metrics", metrics, func(string) (http.Handler, error) { return s.scraped(&cfg), nil })
	}
	if err != nil {
		s.end()
	}
	return s, err
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

// scraped is the handler of the metrics and the probes alone, under any Host and without a log-in.
func (s *consoleServer) scraped(cfg *console.Config) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", cfg.Metrics)
	probe := func(w http.ResponseWriter, r *http.Request) {
		_, port, _ := net.SplitHostPort(cfg.Listen)
		r.Host = net.JoinHostPort("127.0.0.1", port)
		s.console.ServeHTTP(w, r)
	}
	mux.HandleFunc("GET /healthz", probe)
	mux.HandleFunc("GET /readyz", probe)
	return mux
}

// ready gives the console the i-th of its logs.
func (s *consoleServer) ready(i int, log boundedLog, cfg ops.Config) error {
	store, err := ops.New(log.Storage, cfg)
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

// askLogs lets metrics ask operators' stores for the states of the logs with these labels. A store is
// nil until its log is open.
func askLogs(labels []string, stores []atomic.Pointer[ops.Store]) logmetrics.AskFunc {
	return func(ctx context.Context) []logmetrics.Log {
		logs := make([]logmetrics.Log, len(stores))
		var asking sync.WaitGroup
		for i := range stores {
			asking.Go(func() {
				logs[i].Name = labels[i]
				if s := stores[i].Load(); s != nil {
					logs[i].Overview, _ = s.Overview(ctx, ops.OverviewOptions{})
				}
			})
		}
		asking.Wait()
		return logs
	}
}
