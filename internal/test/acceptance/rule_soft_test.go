package acceptance

import (
	"context"
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// soft opens a soft transaction.
func soft(t testing.TB) (context.Context, *bedsql.SoftTransaction) {
	t.Helper()
	ctx, tx, err := bedsql.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return ctx, tx
}

func TestRuleSoftDelivered(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		ctx, tx := soft(t)
		res, err := r.wrapped.ExecContext(ctx, r.q("UPDATE account SET balance = ? WHERE id = ?"), 90, 1)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := res.RowsAffected(); n != 1 || err != nil {
			t.Errorf("RowsAffected = %d, %v; want the driver's own 1", n, err)
		}
		if err := tx.End(context.Background()); err != nil {
			t.Errorf("End: %v, want nil when all is delivered", err)
		}
		r.wantBalances(90)
		r.wantNoLog()
	})
}

func TestRuleSoftRefusedIsParkedAndReported(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, enforced(db))
		r.guarded()
		for _, c := range refusals {
			if c.only != "" && c.only != db.Driver || !c.own {
				continue
			}
			_, want := r.bare.Exec(r.q(c.query), c.args...)
			ctx, tx := soft(t)
			res, err := r.wrapped.ExecContext(ctx, r.q(c.query), c.args...)
			if err != nil {
				t.Fatalf("%s: it was thrown at the caller: %v", c.name, err)
			}
			if n, err := res.RowsAffected(); n != 0 || err != nil {
				t.Errorf("%s: RowsAffected = %d, %v; want 0", c.name, n, err)
			}
			// It does not stop the ones behind it.
			if _, err := r.wrapped.ExecContext(ctx, r.q("UPDATE account SET balance = balance + ? WHERE id = 1"), 1); err != nil {
				t.Errorf("%s: the write behind it: %v", c.name, err)
			}
			err = tx.End(context.Background())
			var refusal *bedsql.RefusedError
			if !errors.As(err, &refusal) || errors.Is(err, bedsql.ErrPending) {
				t.Fatalf("%s: End: %v, want the refusal alone", c.name, err)
			}
			if !isDriversOwn(db, refusal.Cause) || refusal.Cause.Error() != want.Error() || !errors.Is(err, refusal.Cause) {
				t.Errorf("%s: the refusal's cause is %v, want the driver's own %v", c.name, refusal.Cause, want)
			}
			u := r.wantParked(want.Error())
			if u.ID != refusal.EntryID || u.TransactionID != tx.ID() || u.InDoubt {
				t.Errorf("%s: the parked entry is %+v, want %s of transaction %s, not in doubt", c.name, u, refusal.EntryID, tx.ID())
			}
			if report := r.runOnce(); report.Claimed != 0 {
				t.Errorf("%s: the job claimed what is parked: %s", c.name, report)
			}
			if err := r.storage.Discard(context.Background(), u.ID); err != nil {
				t.Fatal(err)
			}
			r.exec("UPDATE account SET balance = 100 WHERE id = 1")
		}
		r.wantGuardedUntouched()
	})
}

func TestRuleSoftPendingIsReportedByEnd(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, noSyncRetry)
		r.account(100, 100)
		ctx, tx := soft(t)
		p.CutBefore(testproxy.Text("balance = 90"))
		res, err := r.wrapped.ExecContext(ctx, "UPDATE account SET balance = 90 WHERE id = 1")
		if err != nil {
			t.Fatalf("it was thrown at the caller: %v", err)
		}
		if n, err := res.RowsAffected(); n != 0 || err != nil {
			t.Errorf("RowsAffected = %d, %v; want 0", n, err)
		}
		if _, err := r.wrapped.ExecContext(ctx, "UPDATE account SET balance = 80 WHERE id = 2"); err != nil {
			t.Errorf("the write behind it: %v", err)
		}
		err = tx.End(context.Background())
		e := wantPending(t, err)
		if u := r.wantOneLog(); u.ID != e.EntryID || u.TransactionID != tx.ID() || u.Parked {
			t.Errorf("the entry is %+v, want %s of transaction %s", u, e.EntryID, tx.ID())
		}
		if again := tx.End(context.Background()); again == nil || again.Error() != err.Error() {
			t.Errorf("a second End says %v, want the same: %v", again, err)
		}
		r.wantBalances(100, 80)
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.wantBalances(90, 80)
		r.wantNoLog()
	})
}

func TestRuleSoftPendingWhenALockIsHeld(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, noSyncRetry)
		r.account(100)
		impatient := r.open(impatient(db).DSN)
		free := r.blockRow(1)
		ctx, tx := soft(t)
		if _, err := impatient.ExecContext(ctx, r.q("UPDATE account SET balance = ? WHERE id = ?"), 90, 1); err != nil {
			t.Fatalf("it was thrown at the caller: %v", err)
		}
		free()
		err := tx.End(context.Background())
		wantPending(t, err)
		if !holdsDriversOwn(db, err) {
			t.Errorf("%v does not unwrap to the driver's error", err)
		}
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.wantBalances(90)
	})
}

func TestRuleSoftPendingAndRefusedAreBothReported(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, noSyncRetry)
		r.account(100)
		ctx, tx := soft(t)
		p.CutBefore(testproxy.Text("balance = 90"))
		for _, query := range []string{
			"UPDATE account SET balance = 90 WHERE id = 1",
			"INSERT INTO account VALUES (1, 1)",
			"UPDATE account SET nope = 1",
		} {
			if _, err := r.wrapped.ExecContext(ctx, query); err != nil {
				t.Errorf("%s was thrown at the caller: %v", query, err)
			}
		}
		err := tx.End(context.Background())
		var refusal *bedsql.RefusedError
		if !errors.Is(err, bedsql.ErrPending) || !errors.As(err, &refusal) || !holdsDriversOwn(db, err) {
			t.Errorf("End: %v, want both ErrPending and the refusals", err)
		}
		if units := r.logs(); len(units) != 3 {
			t.Errorf("the log holds %d units, want one for each write that End reports", len(units))
		}
	})
}

func TestRuleSoftNotAcceptedIsTheCallers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		if _, err := r.logDB.Open(t).Exec("DROP TABLE transaction_log"); err != nil {
			t.Fatal(err)
		}
		ctx, tx := soft(t)
		if _, err := r.wrapped.ExecContext(ctx, "UPDATE account SET balance = 1"); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("%v, want ErrNotLogged: nothing else would ever tell of the write", err)
		}
		if err := tx.End(context.Background()); err != nil {
			t.Errorf("End: %v, but the caller knows already", err)
		}
		r.wantBalances(100)
	})
}

func TestRuleSoftErrorsOfQueryAreTheCallers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		ctx, tx := soft(t)
		var id int
		err := r.wrapped.QueryRowContext(ctx, r.q("INSERT INTO account VALUES (?, ?) RETURNING id"), 1, 1).Scan(&id)
		if !isDriversOwn(db, err) {
			t.Errorf("%T %v, want the driver's own refusal: no rows can be invented", err, err)
		}
		if err := tx.End(context.Background()); err != nil {
			t.Errorf("End: %v, but the caller knows already", err)
		}
		r.wantNoLog()
		r.wantBalances(100)
	})
}

func TestRuleSoftPendingOfQueryIsTheCallers(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, noSyncRetry)
		r.account(100)
		p.Refuse()
		ctx, tx := soft(t)
		err := r.wrapped.QueryRowContext(ctx, "INSERT INTO account VALUES (2, 2) RETURNING id").Scan(new(int))
		r.wantOutcome(pending, err)
		_ = tx.End(context.Background())
		p.Accept()
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.wantBalances(100, 2)
	})
}

func TestRuleSoftWriteAfterEndIsNotSent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		ctx, tx := soft(t)
		if err := tx.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, err := r.wrapped.ExecContext(ctx, "UPDATE account SET balance = 1"); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("%v, want ErrEnded", err)
		}
		r.wantBalances(100)
		r.wantNoLog()
	})
}
