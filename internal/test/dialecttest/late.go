package dialecttest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/txlog"
)

// down is a connector to a server that is down.
type down struct{ driver.Connector }

var errDown = errors.New("dial tcp: connection refused")

func (down) Connect(context.Context) (driver.Conn, error) { return nil, errDown }

// flaky is a connector to a server that is busy at each first attempt.
type flaky struct {
	driver.Connector
	attempts *atomic.Int64
}

func (f flaky) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := f.Connector.Connect(ctx)
	return &flakyConn{conn, f.attempts}, err
}

type flakyConn struct {
	driver.Conn
	attempts *atomic.Int64
}

func (c *flakyConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if c.attempts.Add(1)%2 == 1 {
		return nil, attempt.Certain(errors.New("busy"), dialect.Retryable)
	}
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c *flakyConn) CheckNamedValue(nv *driver.NamedValue) error {
	if n, ok := c.Conn.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(nv)
	}
	return driver.ErrSkip
}

// The wrapped driver writes every value as the bare driver does, at once, by a retry and by the job
// after an outage, or refuses it before running anything, both times. It never writes a value refused by the
// bare driver.
func late(t *testing.T, k *Kit) {
	t.Parallel()
	for _, param := range k.Values.Modes {
		t.Run(param, func(t *testing.T) {
			t.Parallel()
			lateIn(t, k, param)
		})
	}
}

// These are the ways of writing the pairs, each into its own tables.
const (
	bare = iota
	atOnce
	retried
	after
	ways
)

func lateIn(t *testing.T, k *Kit, param string) {
	db := k.DB(t)
	target, err := k.Target(k.WithParam(db.DSN, param))
	if err != nil {
		t.Fatal(err)
	}
	log := txlog.NewMemory()
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	pools := [ways]*sql.DB{bare: Open(t, k.Name, k.WithParam(db.DSN, param))}
	attempts := new(atomic.Int64)
	for way, c := range map[int]driver.Connector{atOnce: target.Connector, retried: flaky{target.Connector, attempts}, after: down{target.Connector}} {
		to := target
		to.Connector = c
		wrapped, err := k.NewConnector(to, bedsql.Config{Storage: log, NoSyncRetry: way != retried, RetryInitial: time.Microsecond, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		pools[way] = sql.OpenDB(wrapped)
		pools[way].SetMaxOpenConns(1)
		t.Cleanup(func() { _ = pools[way].Close() })
	}
	Must(t, pools[bare], k.Values.Setup...)
	values := k.Values.Of()
	refused := map[[2]int]bool{} // by the wrapped driver itself
	for i, column := range k.Values.Columns {
		for way := range ways {
			Must(t, pools[bare], fmt.Sprintf("CREATE TABLE l%d_%d (n INT PRIMARY KEY, v %s)", way, i, column))
		}
		for n, v := range values {
			if k.Values.Skip != nil && k.Values.Skip(column, v) || k.Values.Unsteady != nil && k.Values.Unsteady(v) {
				continue
			}
			var errs [ways]error
			for way, pool := range pools {
				_, errs[way] = pool.Exec(fmt.Sprintf("INSERT INTO l%d_%d VALUES (%s)", way, i, k.Values.Markers), int64(n), v)
			}
			own := [ways]bool{}
			for way, err := range errs {
				var param *txlog.ParamError
				own[way] = errors.As(err, &param)
			}
			refused[[2]int{i, n}] = own[after]
			if (errs[retried] == nil) != (errs[atOnce] == nil) || own[retried] != own[atOnce] {
				t.Errorf("%s: %T(%v): at once: %v\nby a retry: %v", column, v, v, errs[atOnce], errs[retried])
			}
			if own[atOnce] != own[after] || (errs[atOnce] == nil) != (errs[bare] == nil) && !own[atOnce] || !own[after] && !errors.Is(errs[after], bedsql.ErrPending) {
				t.Errorf("%s: %T(%v): bare: %v\nat once: %v\nin an outage: %v", column, v, v, errs[bare], errs[atOnce], errs[after])
			}
		}
	}
	job, err := asyncjob.New(log, asyncjob.Targets{target.DataSource: target},
		asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = job.Close() }()
	untried := func(u *entry.Unit) bool { return !u.Parked && u.Tries == 0 }
	for rounds, more := 0, true; more; rounds++ { // a round gives back what waits behind many that failed
		if _, err := job.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		left, err := log.List(t.Context(), txlog.Filter{Limit: 1_000_000})
		if err != nil {
			t.Fatal(err)
		}
		if more = slices.ContainsFunc(left, untried); more && (rounds > 1000 || !jitter.Sleep(t.Context(), 50*time.Millisecond)) {
			t.Fatal("the job did not try every unit")
		}
	}
	if n := attempts.Load(); n < int64(2*k.Values.Least) {
		t.Errorf("only %d attempts, first ones and retries", n)
	}
	stored := 0
	for i, column := range k.Values.Columns {
		var rows [ways]map[int]string
		for way := range ways {
			rows[way] = shownRows(t, k, pools[bare], fmt.Sprintf("l%d_%d", way, i))
		}
		for n, v := range values {
			want, taken := rows[bare][n]
			if refused[[2]int{i, n}] {
				want, taken = "", false
			}
			for way := atOnce; way < ways; way++ {
				if got, written := rows[way][n]; got != want || written != taken {
					t.Errorf("%s: %T(%v): bare %q, in way %d %q", column, v, v, want, way, got)
				}
			}
			if taken {
				stored++
			}
		}
	}
	if stored < k.Values.Least {
		t.Errorf("only %d values were stored at all", stored)
	}
}

// shownRows returns the content of a table.
func shownRows(t *testing.T, k *Kit, db *sql.DB, table string) map[int]string {
	t.Helper()
	got, err := db.Query("SELECT n, COALESCE(" + k.Values.Shown + ", 'NULL') FROM " + table)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = got.Close() }()
	all := map[int]string{}
	for got.Next() {
		var n int
		var v string
		if err := got.Scan(&n, &v); err != nil {
			t.Fatal(err)
		}
		all[n] = v
	}
	if err := got.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
