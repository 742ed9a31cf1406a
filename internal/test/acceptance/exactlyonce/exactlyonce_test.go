package exactlyonce

import (
	"context"
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestExactlyOnceIncrementLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.Account(100)
		for range 10 {
			res, err := r.Wrapped.Exec(r.Q("UPDATE account SET balance = balance + ? WHERE id = ?"), 1, 1)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := res.RowsAffected(); n != 1 || err != nil {
				t.Fatalf("RowsAffected = %d, %v", n, err)
			}
		}
		tx, err := r.Wrapped.Begin()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := tx.Exec(r.Q("UPDATE account SET balance = balance + ? WHERE id = ?"), 1, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if b := r.Balance(1); b != 112 {
			t.Errorf("balance = %d, want 112", b)
		}
		r.WantNoLog()
		_ = r.Wrapped.Close() // erases what was still to be erased
		if n := r.Count("SELECT COUNT(*) FROM bed_receipt"); n != 0 {
			t.Errorf("%d receipts are left, want none", n)
		}
	})
}

func TestExactlyOnceSurvivesALostAnswer(t *testing.T) {
	t.Parallel()
	for _, kind := range []func(testing.TB) testdb.DB{testdb.MySQL, testdb.Postgres} {
		db := kind(t)
		t.Run(db.Driver, func(t *testing.T) {
			t.Parallel()
			proxy := testproxy.New(t, db.Addr())
			r := rig.New(t, db.Via(proxy.Addr()), rig.ExactlyOnce)
			r.Account(100)
			want := 100
			add := func() {
				t.Helper()
				if _, err := r.Wrapped.ExecContext(context.Background(), r.Q("UPDATE account SET balance = balance + ? WHERE id = ?"), 1, 1); err != nil {
					t.Fatal(err)
				}
				if want++; r.Balance(1) != want {
					t.Fatalf("balance = %d, want %d", r.Balance(1), want)
				}
			}
			r.Wrapped.SetMaxOpenConns(1)
			for uses := range 6 { // of the connection, before: the third prepares the write
				for range uses {
					add()
				}
				struck := proxy.CutAfter(func(m []byte) bool {
					return testproxy.Text("commit")(m) || testproxy.PostgresExecute(m) || testproxy.MySQLExecute(m)
				})
				add()
				<-struck
			}
			r.WantNoLog()
		})
	}
}
