package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
)

// Main runs the command and returns its exit status. o brings the contenders
// of other people; the rest of it is read from args.
func Main(o Options, args []string, out, progress io.Writer) int {
	if err := o.parse(args, progress); err != nil {
		fmt.Fprintln(progress, "bench:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := Run(ctx, o, out, progress); err != nil {
		fmt.Fprintln(progress, "bench:", err)
		return 1
	}
	return 0
}

// Run measures and prints. An error means that a measurement is missing, or that a contender did
// not do its work.
func Run(ctx context.Context, o Options, out, progress io.Writer) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	start := time.Now()
	note := func(what string) { fmt.Fprintf(progress, "%6.1fs %s\n", time.Since(start).Seconds(), what) }
	r := &results{opts: &o}
	if o.runs("select") {
		// First, while the rest of the process is idle.
		r.selects = &selects{opts: &o}
		if err := r.selects.run(note); err != nil {
			return err
		}
	}
	if o.runs("writes") || o.runs("drain") || o.runs("claims") {
		s, err := newSite(ctx, o.RoundTrip, measurable)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.close()) }()
		if err := r.onServers(ctx, s, out, note); err != nil {
			r.print(out) // what there is
			return err
		}
	}
	r.print(out)
	note("done")
	return nil
}

func (r *results) onServers(ctx context.Context, s *site, out io.Writer, note func(string)) error {
	o := r.opts
	if err := s.describe(ctx, o, out); err != nil {
		return err
	}
	if o.runs("writes") {
		w, err := newWrites(o, s)
		if err != nil {
			return err
		}
		r.writes = w
		if err := w.run(ctx, note); err != nil {
			return err
		}
	}
	if o.runs("drain") {
		r.drain = &drain{opts: o, site: s, conns: drainConns}
		if err := r.drain.run(ctx, note); err != nil {
			return err
		}
	}
	if o.runs("claims") {
		r.claims = &claims{opts: o, site: s}
		if err := r.claims.run(ctx, note); err != nil {
			return err
		}
	}
	return nil
}

// describe prints the machine and the servers.
func (s *site) describe(ctx context.Context, o *Options, out io.Writer) error {
	fmt.Fprintf(out, "%s, %s/%s, %d cores, %s\n", time.Now().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	style := "text and arguments with each call, one round trip"
	if o.Prepared {
		style = "prepared once"
	}
	fmt.Fprintf(out, "%s\n%s\nturns of %v after %v, %d rounds at most; the application's statement: %s\n", s.mysql.what, s.postgres.what, o.Turn, o.WarmUp, o.Rounds, style)
	var measured []string
	for _, driver := range []string{testdb.DriverMySQL, testdb.DriverPostgres} {
		p, err := s.create(driver)
		if err != nil {
			return err
		}
		var took [2]time.Duration
		for i, far := range []bool{false, true} {
			if took[i], err = p.roundTrip(ctx, far); err != nil {
				return err
			}
		}
		measured = append(measured, fmt.Sprintf("%s %v near, %v far", driver, took[0], took[1]))
	}
	fmt.Fprintf(out, "a query of nothing takes: %s\n", strings.Join(measured, "; "))
	return nil
}

// roundTrip is the median time of an empty query.
func (p *place) roundTrip(ctx context.Context, far bool) (time.Duration, error) {
	pool, err := p.open(far, false, 1)
	if err != nil {
		return 0, err
	}
	defer func() { _ = pool.Close() }()
	var took series
	for range 51 {
		start := time.Now()
		if err := one(ctx, pool); err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(start)))
	}
	return time.Duration(took.median()).Round(10 * time.Microsecond), nil
}

func one(ctx context.Context, pool *sql.DB) error {
	var n int
	return pool.QueryRowContext(ctx, "SELECT 1").Scan(&n)
}
