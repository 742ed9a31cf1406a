package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// outcome is a row of the rule of truth.
type outcome string

const (
	delivered   outcome = "delivered"
	refused     outcome = "refused"
	pending     outcome = "pending"
	notAccepted outcome = "not accepted"
)

// wantOutcome checks that err matches exactly one row of the rule, and that the log agrees.
func (r *rig) wantOutcome(want outcome, err error) {
	r.t.Helper()
	var got []outcome
	isPending, isNotLogged := errors.Is(err, bedsql.ErrPending), errors.Is(err, bedsql.ErrNotLogged)
	if err == nil {
		got = append(got, delivered)
	}
	if isPending {
		got = append(got, pending)
	}
	if isNotLogged {
		got = append(got, notAccepted)
	}
	if err != nil && !isPending && !isNotLogged {
		got = append(got, refused)
	}
	if len(got) != 1 || got[0] != want {
		r.t.Errorf("the error %v tells: %v, want %s alone", err, got, want)
	}
	wantOutcomeOf(r.t, string(want), err, map[outcome]bedsql.Outcome{
		delivered: bedsql.OutcomeDelivered, refused: bedsql.OutcomeRefused, pending: bedsql.OutcomeAccepted, notAccepted: bedsql.OutcomeNotAccepted,
	}[want])
	logs := r.logs()
	if kept := want == pending; kept != (len(logs) == 1) || len(logs) > 1 {
		r.t.Errorf("%s, and the log holds %d units: %+v", want, len(logs), logs)
	}
}

// isDriversOwn makes the type assertion that gorm and ent make.
func isDriversOwn(db testdb.DB, err error) bool {
	switch db.Driver {
	case testdb.DriverMySQL:
		_, ok := err.(*mysql.MySQLError)
		return ok
	case testdb.DriverPostgres:
		_, ok := err.(*pgconn.PgError)
		return ok
	default:
		_, ok := err.(*sqlite.Error)
		return ok
	}
}

// holdsDriversOwn is isDriversOwn for an error that wraps it.
func holdsDriversOwn(db testdb.DB, err error) bool {
	switch db.Driver {
	case testdb.DriverMySQL:
		var e *mysql.MySQLError
		return errors.As(err, &e)
	case testdb.DriverPostgres:
		var e *pgconn.PgError
		return errors.As(err, &e)
	default:
		var e *sqlite.Error
		return errors.As(err, &e)
	}
}

// withParam adds a parameter to a DSN of any of the three forms.
func withParam(db testdb.DB, key, value string) testdb.DB {
	sep := "?"
	if strings.Contains(db.DSN, "?") {
		sep = "&"
	}
	// A blank must not become "+", because pgx takes that literally.
	db.DSN += sep + key + "=" + strings.ReplaceAll(url.QueryEscape(value), "+", "%20")
	return db
}

func TestRuleDelivered(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100, 100)
		res, err := r.wrapped.Exec(r.q("UPDATE account SET balance = ? WHERE id <= ?"), 90, 2)
		r.wantOutcome(delivered, err)
		if err != nil {
			t.FailNow()
		}
		bare, err := r.bare.Exec(r.q("UPDATE account SET balance = ? WHERE id <= ?"), 80, 2)
		if err != nil {
			t.Fatal(err)
		}
		n, nerr := res.RowsAffected()
		wantN, wantNErr := bare.RowsAffected()
		if n != wantN || !reflect.DeepEqual(nerr, wantNErr) {
			t.Errorf("RowsAffected = %d, %v; the driver's own says %d, %v", n, nerr, wantN, wantNErr)
		}
		_, iderr := res.LastInsertId()
		_, wantIDErr := bare.LastInsertId()
		if !reflect.DeepEqual(iderr, wantIDErr) {
			t.Errorf("LastInsertId gives the error %v, the driver's own %v", iderr, wantIDErr)
		}
		if n := r.counters.Delivered.Load(); n != 1 {
			t.Errorf("%d deliveries counted, want 1", n)
		}
	})
}

func TestRuleDeliveredChangesTheTable(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		for _, on := range []string{"text", "prepared"} {
			var err error
			if on == "text" {
				_, err = r.wrapped.Exec(r.q("UPDATE account SET balance = balance - ? WHERE id = ?"), 10, 1)
			} else {
				var st *sql.Stmt
				if st, err = r.wrapped.Prepare(r.q("UPDATE account SET balance = balance - ? WHERE id = ?")); err == nil {
					_, err = st.Exec(10, 1)
					_ = st.Close()
				}
			}
			r.wantOutcome(delivered, err)
		}
		if _, err := r.wrapped.Exec("INSERT INTO account VALUES (2, 5)"); err != nil {
			t.Error(err)
		}
		r.wantBalances(80, 5)
	})
}

func TestRuleEndedContextSendsAndLogsNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		adds := 0
		r := newRig(t, db, func(c *bedsql.Config) { c.Storage = countAdds(c.Storage, &adds) })
		r.account(100)
		ctx, cancel := context.WithCancel(context.Background())
		st, err := r.wrapped.Prepare("UPDATE account SET balance = 1")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		cancel()
		if _, err := r.wrapped.ExecContext(ctx, "UPDATE account SET balance = 1"); !errors.Is(err, context.Canceled) || errors.Is(err, bedsql.ErrPending) {
			t.Errorf("Exec: %v, want the context's own error", err)
		}
		if _, err := st.ExecContext(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, bedsql.ErrPending) {
			t.Errorf("Stmt.Exec: %v, want the context's own error", err)
		}
		if adds != 0 {
			t.Errorf("%d entries were written", adds)
		}
		r.wantBalances(100)
	})
}

func TestRuleNotAcceptedWhenTheLogFails(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		if _, err := r.logDB.Open(t).Exec("DROP TABLE transaction_log"); err != nil {
			t.Fatal(err)
		}
		for _, query := range []string{"UPDATE account SET balance = 1", "DELETE FROM account"} {
			_, err := r.wrapped.Exec(query)
			if !errors.Is(err, bedsql.ErrNotLogged) || errors.Is(err, bedsql.ErrPending) {
				t.Fatalf("%v, want ErrNotLogged and not ErrPending", err)
			}
			if !holdsDriversOwn(db, err) {
				t.Errorf("%v does not unwrap to what the log's database said", err)
			}
		}
		r.wantBalances(100)
		if n := r.counters.NotLogged.Load(); n != 2 {
			t.Errorf("%d writes counted as not accepted, want 2", n)
		}
	})
}

func TestRuleNotAcceptedWhenTheLogIsDown(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigLogBehindProxy(t, db)
		r.account(100)
		p.Refuse()
		p.CutAll()
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		_, err := r.wrapped.ExecContext(ctx, "UPDATE account SET balance = 1")
		// A pooled connection may have been found dead only by writing to it:
		// then it is not known that nothing arrived.
		if !errors.Is(err, bedsql.ErrNotLogged) && !errors.Is(err, bedsql.ErrPending) {
			t.Errorf("%v, want ErrNotLogged or, if that is not known, ErrPending", err)
		}
		if errors.Is(err, bedsql.ErrNotLogged) && errors.Is(err, bedsql.ErrPending) {
			t.Errorf("%v is two things at once", err)
		}
		r.wantBalances(100)
		_, err = r.wrapped.Exec("UPDATE account SET balance = 2")
		r.wantOutcome(notAccepted, err)
		r.wantBalances(100)
		p.Accept()
		r.must(r.wrapped, "UPDATE account SET balance = ?", 3)
		r.wantBalances(3)
	})
}

func TestRuleUnstorableParametersAreRefusedFirst(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	adds := 0
	r := newRig(t, db, func(c *bedsql.Config) { c.Storage = countAdds(c.Storage, &adds) })
	r.account(100)
	_, err := r.wrapped.Exec("UPDATE account SET balance = $1 WHERE id = $2", make(chan int), 1)
	r.wantOutcome(refused, err)
	if err == nil || !strings.Contains(err.Error(), "1") {
		t.Errorf("%v does not name the parameter", err)
	}
	if adds != 0 {
		t.Errorf("%d entries were written", adds)
	}
	r.wantBalances(100)
}

// countAdds counts the units that are written to a log.
func countAdds(s txlog.Storage, n *int) txlog.Storage {
	return &hookedStorage{Storage: s, onAdd: func(units []*txlog.Unit) error {
		*n += len(units)
		return nil
	}}
}

func TestRuleErrorsSayWhatWhereAndWhatNext(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	r := newRig(t, db, noSyncRetry)
	r.account(100)
	free := r.blockRow(1)
	_, err := r.open(impatient(db).DSN).Exec("UPDATE account SET balance = ?", 12345678)
	free()
	e := wantPending(t, err)
	for _, want := range []string{e.EntryID, e.DataSource, "pending", "locked"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "12345678") {
		t.Errorf("%q holds a parameter's value", err)
	}
}
