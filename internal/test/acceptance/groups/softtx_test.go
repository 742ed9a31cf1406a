package groups

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// The acceptance case of Sharding-JDBC's soft transactions: one failing
// statement does not stop the ones behind it.
func TestSoftTransactionBadStatementStopsNoOther(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(1, 2, 3)
		ctx, st := rig.Soft(t)
		run := func(query string, args ...any) sql.Result {
			t.Helper()
			res, err := r.Wrapped.ExecContext(ctx, r.Q(query), args...)
			if err != nil {
				t.Fatalf("%s: %v", query, err)
			}
			return res
		}
		wantRows := func(res sql.Result, want int64) {
			t.Helper()
			if n, err := res.RowsAffected(); n != want || err != nil {
				t.Errorf("RowsAffected: %d, %v; want %d", n, err, want)
			}
		}
		wantRows(run(rig.SetBalance, 10, 1), 1)
		wantRows(run("UPDATE account SET no_such_column = ? WHERE id = ?", 20, 2), 0)
		wantRows(run(rig.SetBalance, 30, 3), 1)

		r.WantBalances(10, 2, 30)
		u := r.WantParked("no_such_column")
		if u.TransactionID != st.ID() {
			t.Errorf("the log carries the transaction id %q, want %q", u.TransactionID, st.ID())
		}
		first := st.End(context.Background())
		var refused *bedsql.RefusedError
		if !errors.As(first, &refused) || refused.EntryID != u.ID || !rig.HoldsDriversOwn(db, refused.Cause) || errors.Is(first, bedsql.ErrPending) {
			t.Errorf("End: %v, want the refusal of log %s with the driver's own error", first, u.ID)
		}
		if second := st.End(context.Background()); second == nil || second.Error() != first.Error() {
			t.Errorf("End the second time: %v, want the same again: %v", second, first)
		}
		// An operator fixes the table and has it delivered.
		if report := r.RunOnce(); report.Claimed != 0 {
			t.Errorf("the job touched a parked unit: %v", report)
		}
		r.Exec("ALTER TABLE account ADD COLUMN no_such_column INT")
		if err := r.Storage.Retry(context.Background(), u.ID); err != nil {
			t.Fatal(err)
		}
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job's round: %v", report)
		}
		if n := r.Count("SELECT no_such_column FROM account WHERE id = 2"); n != 20 {
			t.Errorf("the second statement wrote %d, want 20", n)
		}
		r.WantNoLog()
	})
}

func TestSoftTransactionsDoNotNest(t *testing.T) {
	t.Parallel()
	ctx, st := rig.Soft(t)
	inner, second, err := bedsql.Begin(ctx)
	if !errors.Is(err, bedsql.ErrNested) || second != nil || !strings.Contains(err.Error(), st.ID()) {
		t.Errorf("Begin: %v, %v; want ErrNested, naming the one that is open", second, err)
	}
	if inner == nil {
		t.Error("the context is nil: it would panic where it is used")
	}
	if err := st.End(context.Background()); err != nil {
		t.Error(err)
	}
	if _, third, err := bedsql.Begin(ctx); err != nil || third.ID() == st.ID() {
		t.Errorf("Begin after End: %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := bedsql.Begin(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Begin under an ended context: %v", err)
	}
}

func TestSoftTransactionIsForManyGoroutines(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		const goroutines, each = 8, 10
		r := rig.New(t, db)
		r.Account(0, 0, 0, 0, 0, 0, 0, 0)
		ctx, st := rig.Soft(t)
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				for i := range each {
					query := fmt.Sprintf("UPDATE account SET balance = balance + 1 WHERE id = %d", g+1)
					if i == each/2 {
						query = "UPDATE account SET nosuch = 1"
					}
					if _, err := r.Wrapped.ExecContext(ctx, query); err != nil {
						t.Errorf("goroutine %d: %v", g, err)
					}
				}
			})
		}
		wg.Wait()
		err := st.End(context.Background())
		if n := strings.Count(fmt.Sprint(err), "refused a write"); n != goroutines {
			t.Errorf("End reports %d refusals, want %d: %v", n, goroutines, err)
		}
		for id := 1; id <= goroutines; id++ {
			if b := r.Balance(id); b != each-1 {
				t.Errorf("balance of account %d is %d, want %d", id, b, each-1)
			}
		}
		units := r.Logs()
		if len(units) != goroutines {
			t.Fatalf("the log holds %d units, want %d", len(units), goroutines)
		}
		for _, u := range units {
			if !u.Parked || u.TransactionID != st.ID() {
				t.Errorf("the log holds %+v, want it parked and of transaction %s", u, st.ID())
			}
		}
	})
}

// End waits for what runs in other goroutines, as long as its context allows.
func TestSoftTransactionEndWaitsForWritesThatRun(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(1)
		ctx, st := rig.Soft(t)
		reached, release := p.Hold(testproxy.Text(rig.AddOne))
		defer release()
		done := make(chan error, 1)
		go func() {
			_, err := r.Wrapped.ExecContext(ctx, rig.AddOne)
			done <- err
		}()
		rig.WaitFor(t, "the write is on its way", reached)
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		if err := st.End(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("End under an ended context: %v, want it to say that writes still run", err)
		}
		if _, err := r.Wrapped.ExecContext(ctx, rig.AddOne); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("a write after End: %v, want ErrEnded", err)
		}
		release()
		if err := <-done; err != nil {
			t.Errorf("the write that ran: %v", err)
		}
		if err := st.End(context.Background()); err != nil {
			t.Errorf("End: %v", err)
		}
		r.WantBalances(2)
		r.WantNoLog()
	})
}

func TestSoftTransactionReportsAPendingCommit(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		r.Account(1, 2)
		ctx, st := rig.Soft(t)
		tx, err := r.Wrapped.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		r.Must(tx, rig.SetBalance, 10, 1)
		// Before COMMIT its errors are the caller's.
		r.Must(tx, "SAVEPOINT a")
		if err := r.Fails(tx, "UPDATE account SET nosuch = 1"); !rig.IsDriversOwn(db, err) {
			t.Errorf("a statement's error is %v, want the driver's own", err)
		}
		r.Must(tx, "ROLLBACK TO SAVEPOINT a")
		p.CutBefore(testproxy.Commit)
		if err := tx.Commit(); err != nil {
			t.Errorf("Commit: %v, want it swallowed", err)
		}
		u := r.WantOneLog()
		if u.TransactionID != st.ID() {
			t.Errorf("the log carries the transaction id %q, want %q", u.TransactionID, st.ID())
		}
		pending := rig.WantPending(t, st.End(context.Background()))
		if pending.EntryID != u.ID {
			t.Errorf("End reports entry %s, want %s", pending.EntryID, u.ID)
		}
		r.RunOnce()
		r.WantBalances(10, 2)
		r.WantNoLog()
	})
}

func TestSoftTransactionCommitAfterEndCommitsNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Wrapped.SetMaxOpenConns(1)
		r.Account(1)
		ctx, st := rig.Soft(t)
		tx, err := r.Wrapped.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		r.Must(tx, rig.SetBalance, 10, 1)
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("Commit: %v, want ErrEnded", err)
		}
		r.WantBalances(1)
		r.Must(r.Wrapped, rig.SetBalance, 11, 1)
		r.WantBalances(11)
		r.WantNoLog()
	})
}

// One soft transaction spans databases of different kinds.
func TestSoftTransactionSpansDatabases(t *testing.T) {
	t.Parallel()
	logDB := testdb.NewLog(t, testdb.DriverMySQL)
	storage, err := txlog.Open(context.Background(), logDB.Driver, logDB.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = storage.Close() })
	ctx, st := rig.Soft(t)
	var rigs []*rig.Rig
	for _, db := range []testdb.DB{testdb.MySQL(t), testdb.Postgres(t), testdb.SQLite(t)} {
		r := rig.NewWithLog(t, db, logDB)
		r.Account(1)
		rigs = append(rigs, r)
		for _, query := range []string{rig.AddOne, "UPDATE account SET nosuch = 1"} {
			if _, err := r.Wrapped.ExecContext(ctx, query); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := strings.Count(fmt.Sprint(st.End(context.Background())), "refused a write"); n != len(rigs) {
		t.Errorf("End reports %d refusals, want one of each database", n)
	}
	sources := map[string]bool{}
	for _, u := range rigs[0].Logs() {
		sources[u.DataSource] = u.TransactionID == st.ID()
	}
	for _, r := range rigs {
		r.WantBalances(2)
		if !sources[rig.DataSourceOf(t, r.DB)] {
			t.Errorf("the log holds no unit of the transaction for %s", r.DB.Driver)
		}
	}
}
