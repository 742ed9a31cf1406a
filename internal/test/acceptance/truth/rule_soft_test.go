package truth

import (
	"context"
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestRuleSoftDelivered(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		ctx, tx := rig.Soft(t)
		res, err := r.Wrapped.ExecContext(ctx, r.Q("UPDATE account SET balance = ? WHERE id = ?"), 90, 1)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := res.RowsAffected(); n != 1 || err != nil {
			t.Errorf("RowsAffected = %d, %v; want the driver's own 1", n, err)
		}
		if err := tx.End(context.Background()); err != nil {
			t.Errorf("End: %v, want nil when all is delivered", err)
		}
		r.WantBalances(90)
		r.WantNoLog()
	})
}

func TestRuleSoftRefusedIsParkedAndReported(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, rig.Enforced(db))
		r.Guarded()
		for _, c := range refusals {
			want := c.bare(t, r)
			if want == nil || !c.own {
				continue
			}
			ctx, tx := rig.Soft(t)
			res, err := r.Wrapped.ExecContext(ctx, r.Q(c.query), c.args...)
			if err != nil {
				t.Fatalf("%s: it was thrown at the caller: %v", c.name, err)
			}
			if n, err := res.RowsAffected(); n != 0 || err != nil {
				t.Errorf("%s: RowsAffected = %d, %v; want 0", c.name, n, err)
			}
			// It does not stop the ones behind it.
			if _, err := r.Wrapped.ExecContext(ctx, r.Q("UPDATE account SET balance = balance + ? WHERE id = 1"), 1); err != nil {
				t.Errorf("%s: the write behind it: %v", c.name, err)
			}
			err = tx.End(context.Background())
			var refusal *bedsql.RefusedError
			if !errors.As(err, &refusal) || errors.Is(err, bedsql.ErrPending) {
				t.Fatalf("%s: End: %v, want the refusal alone", c.name, err)
			}
			if !rig.IsDriversOwn(db, refusal.Cause) || refusal.Cause.Error() != want.Error() || !errors.Is(err, refusal.Cause) {
				t.Errorf("%s: the refusal's cause is %v, want the driver's own %v", c.name, refusal.Cause, want)
			}
			u := r.WantParked(want.Error())
			if u.ID != refusal.EntryID || u.TransactionID != tx.ID() || u.InDoubt {
				t.Errorf("%s: the parked entry is %+v, want %s of transaction %s, not in doubt", c.name, u, refusal.EntryID, tx.ID())
			}
			if report := r.RunOnce(); report.Claimed != 0 {
				t.Errorf("%s: the job claimed what is parked: %s", c.name, report)
			}
			if err := r.Storage.Discard(context.Background(), u.ID); err != nil {
				t.Fatal(err)
			}
			r.Exec("UPDATE account SET balance = 100 WHERE id = 1")
		}
		r.WantGuardedUntouched()
	})
}

func TestRuleSoftPendingIsReportedByEnd(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		r.Account(100, 100)
		ctx, tx := rig.Soft(t)
		p.CutBefore(testproxy.Text("balance = 90"))
		res, err := r.Wrapped.ExecContext(ctx, "UPDATE account SET balance = 90 WHERE id = 1")
		if err != nil {
			t.Fatalf("it was thrown at the caller: %v", err)
		}
		if n, err := res.RowsAffected(); n != 0 || err != nil {
			t.Errorf("RowsAffected = %d, %v; want 0", n, err)
		}
		if _, err := r.Wrapped.ExecContext(ctx, "UPDATE account SET balance = 80 WHERE id = 2"); err != nil {
			t.Errorf("the write behind it: %v", err)
		}
		err = tx.End(context.Background())
		e := rig.WantPending(t, err)
		if u := r.WantOneLog(); u.ID != e.EntryID || u.TransactionID != tx.ID() || u.Parked {
			t.Errorf("the entry is %+v, want %s of transaction %s", u, e.EntryID, tx.ID())
		}
		if again := tx.End(context.Background()); again == nil || again.Error() != err.Error() {
			t.Errorf("a second End says %v, want the same: %v", again, err)
		}
		r.WantBalances(100, 80)
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.WantBalances(90, 80)
		r.WantNoLog()
	})
}

func TestRuleSoftPendingWhenALockIsHeld(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.NoSyncRetry)
		r.Account(100)
		impatient := r.Open(rig.Impatient(db).DSN)
		free := r.BlockRow(1)
		ctx, tx := rig.Soft(t)
		if _, err := impatient.ExecContext(ctx, r.Q("UPDATE account SET balance = ? WHERE id = ?"), 90, 1); err != nil {
			t.Fatalf("it was thrown at the caller: %v", err)
		}
		free()
		err := tx.End(context.Background())
		rig.WantPending(t, err)
		if !rig.HoldsDriversOwn(db, err) {
			t.Errorf("%v does not unwrap to the driver's error", err)
		}
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.WantBalances(90)
	})
}

func TestRuleSoftPendingAndRefusedAreBothReported(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		r.Account(100)
		ctx, tx := rig.Soft(t)
		p.CutBefore(testproxy.Text("balance = 90"))
		for _, query := range []string{
			"UPDATE account SET balance = 90 WHERE id = 1",
			"INSERT INTO account VALUES (1, 1)",
			"UPDATE account SET nope = 1",
		} {
			if _, err := r.Wrapped.ExecContext(ctx, query); err != nil {
				t.Errorf("%s was thrown at the caller: %v", query, err)
			}
		}
		err := tx.End(context.Background())
		var refusal *bedsql.RefusedError
		if !errors.Is(err, bedsql.ErrPending) || !errors.As(err, &refusal) || !rig.HoldsDriversOwn(db, err) {
			t.Errorf("End: %v, want both ErrPending and the refusals", err)
		}
		if units := r.Logs(); len(units) != 3 {
			t.Errorf("the log holds %d units, want one for each write that End reports", len(units))
		}
	})
}

func TestRuleSoftNotAcceptedIsTheCallers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		if _, err := r.LogDB.Open(t).Exec("DROP TABLE transaction_log"); err != nil {
			t.Fatal(err)
		}
		ctx, tx := rig.Soft(t)
		if _, err := r.Wrapped.ExecContext(ctx, "UPDATE account SET balance = 1"); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("%v, want ErrNotLogged: nothing else would ever tell of the write", err)
		}
		if err := tx.End(context.Background()); err != nil {
			t.Errorf("End: %v, but the caller knows already", err)
		}
		r.WantBalances(100)
	})
}

func TestRuleSoftErrorsOfQueryAreTheCallers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		ctx, tx := rig.Soft(t)
		var id int
		err := r.Wrapped.QueryRowContext(ctx, r.Q("INSERT INTO account VALUES (?, ?) RETURNING id"), 1, 1).Scan(&id)
		if !rig.IsDriversOwn(db, err) {
			t.Errorf("%T %v, want the driver's own refusal: no rows can be invented", err, err)
		}
		if err := tx.End(context.Background()); err != nil {
			t.Errorf("End: %v, but the caller knows already", err)
		}
		r.WantNoLog()
		r.WantBalances(100)
	})
}

func TestRuleSoftPendingOfQueryIsTheCallers(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		r.Account(100)
		if !r.Returns(t) {
			return
		}
		p.Refuse()
		ctx, tx := rig.Soft(t)
		err := r.Wrapped.QueryRowContext(ctx, "INSERT INTO account VALUES (2, 2) RETURNING id").Scan(new(int))
		r.WantOutcome(rig.Pending, err)
		_ = tx.End(context.Background())
		p.Accept()
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.WantBalances(100, 2)
	})
}

func TestRuleSoftWriteAfterEndIsNotSent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		ctx, tx := rig.Soft(t)
		if err := tx.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Wrapped.ExecContext(ctx, "UPDATE account SET balance = 1"); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("%v, want ErrEnded", err)
		}
		r.WantBalances(100)
		r.WantNoLog()
	})
}
