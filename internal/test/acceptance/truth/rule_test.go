package truth

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestRuleDelivered(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100, 100)
		res, err := r.Wrapped.Exec(r.Q("UPDATE account SET balance = ? WHERE id <= ?"), 90, 2)
		r.WantOutcome(rig.Delivered, err)
		if err != nil {
			t.FailNow()
		}
		bare, err := r.Bare.Exec(r.Q("UPDATE account SET balance = ? WHERE id <= ?"), 80, 2)
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
		if n := r.Counters.Delivered.Load(); n != 1 {
			t.Errorf("%d deliveries counted, want 1", n)
		}
	})
}

func TestRuleDeliveredChangesTheTable(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		for _, on := range []string{"text", "prepared"} {
			var err error
			if on == "text" {
				_, err = r.Wrapped.Exec(r.Q("UPDATE account SET balance = balance - ? WHERE id = ?"), 10, 1)
			} else {
				var st *sql.Stmt
				if st, err = r.Wrapped.Prepare(r.Q("UPDATE account SET balance = balance - ? WHERE id = ?")); err == nil {
					_, err = st.Exec(10, 1)
					_ = st.Close()
				}
			}
			r.WantOutcome(rig.Delivered, err)
		}
		if _, err := r.Wrapped.Exec("INSERT INTO account VALUES (2, 5)"); err != nil {
			t.Error(err)
		}
		r.WantBalances(80, 5)
	})
}

func TestRuleEndedContextSendsAndLogsNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		adds := 0
		r := rig.New(t, db, func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
		r.Account(100)
		ctx, cancel := context.WithCancel(context.Background())
		st, err := r.Wrapped.Prepare("UPDATE account SET balance = 1")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		cancel()
		if _, err := r.Wrapped.ExecContext(ctx, "UPDATE account SET balance = 1"); !errors.Is(err, context.Canceled) || errors.Is(err, bedsql.ErrPending) {
			t.Errorf("Exec: %v, want the context's own error", err)
		}
		if _, err := st.ExecContext(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, bedsql.ErrPending) {
			t.Errorf("Stmt.Exec: %v, want the context's own error", err)
		}
		if adds != 0 {
			t.Errorf("%d entries were written", adds)
		}
		r.WantBalances(100)
	})
}

func TestRuleNotAcceptedWhenTheLogFails(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		if _, err := r.LogDB.Open(t).Exec("DROP TABLE transaction_log"); err != nil {
			t.Fatal(err)
		}
		for _, query := range []string{"UPDATE account SET balance = 1", "DELETE FROM account"} {
			_, err := r.Wrapped.Exec(query)
			if !errors.Is(err, bedsql.ErrNotLogged) || errors.Is(err, bedsql.ErrPending) {
				t.Fatalf("%v, want ErrNotLogged and not ErrPending", err)
			}
			if !rig.HoldsDriversOwn(db, err) {
				t.Errorf("%v does not unwrap to what the log's database said", err)
			}
		}
		r.WantBalances(100)
		if n := r.Counters.NotLogged.Load(); n != 2 {
			t.Errorf("%d writes counted as not accepted, want 2", n)
		}
	})
}

func TestRuleNotAcceptedWhenTheLogIsDown(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewLogBehindProxy(t, db)
		r.Account(100)
		p.Refuse()
		p.CutAll()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_, err := r.Wrapped.ExecContext(ctx, "UPDATE account SET balance = 1")
		// A pooled connection may have been found dead only by writing to it:
		// then it is not known that nothing arrived.
		if !errors.Is(err, bedsql.ErrNotLogged) && !errors.Is(err, bedsql.ErrPending) {
			t.Errorf("%v, want ErrNotLogged or, if that is not known, ErrPending", err)
		}
		if errors.Is(err, bedsql.ErrNotLogged) && errors.Is(err, bedsql.ErrPending) {
			t.Errorf("%v is two things at once", err)
		}
		r.WantBalances(100)
		_, err = r.Wrapped.Exec("UPDATE account SET balance = 2")
		r.WantOutcome(rig.NotAccepted, err)
		r.WantBalances(100)
		p.Accept()
		r.Must(r.Wrapped, "UPDATE account SET balance = ?", 3)
		r.WantBalances(3)
	})
}

func TestRuleUnstorableParametersAreRefusedFirst(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	adds := 0
	r := rig.New(t, db, func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
	r.Account(100)
	_, err := r.Wrapped.Exec("UPDATE account SET balance = $1 WHERE id = $2", make(chan int), 1)
	r.WantOutcome(rig.Refused, err)
	if err == nil || !strings.Contains(err.Error(), "1") {
		t.Errorf("%v does not name the parameter", err)
	}
	if adds != 0 {
		t.Errorf("%d entries were written", adds)
	}
	r.WantBalances(100)
}

func TestRuleErrorsSayWhatWhereAndWhatNext(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	r := rig.New(t, db, rig.NoSyncRetry)
	r.Account(100)
	free := r.BlockRow(1)
	_, err := r.Open(rig.Impatient(db).DSN).Exec("UPDATE account SET balance = ?", 12345678)
	free()
	e := rig.WantPending(t, err)
	for _, want := range []string{e.EntryID, e.DataSource, "pending", "locked"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "12345678") {
		t.Errorf("%q holds a parameter's value", err)
	}
}
