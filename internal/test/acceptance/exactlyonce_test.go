package acceptance

import (
	"context"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// exactlyOnce turns the guarantee on.
func exactlyOnce(cfg *bedsql.Config) { cfg.Guarantee = bedsql.ExactlyOnce }

func TestExactlyOnceIncrementLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, exactlyOnce)
		r.account(100)
		for range 10 {
			res, err := r.wrapped.Exec(r.q("UPDATE account SET balance = balance + ? WHERE id = ?"), 1, 1)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := res.RowsAffected(); n != 1 || err != nil {
				t.Fatalf("RowsAffected = %d, %v", n, err)
			}
		}
		tx, err := r.wrapped.Begin()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := tx.Exec(r.q("UPDATE account SET balance = balance + ? WHERE id = ?"), 1, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if b := r.balance(1); b != 112 {
			t.Errorf("balance = %d, want 112", b)
		}
		r.wantNoLog()
		_ = r.wrapped.Close() // erases what was still to be erased
		if n := r.count("SELECT COUNT(*) FROM bed_receipt"); n != 0 {
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
			r := newRig(t, db.Via(proxy.Addr()), exactlyOnce)
			r.account(100)
			want := 100
			add := func() {
				t.Helper()
				if _, err := r.wrapped.ExecContext(context.Background(), r.q("UPDATE account SET balance = balance + ? WHERE id = ?"), 1, 1); err != nil {
					t.Fatal(err)
				}
				if want++; r.balance(1) != want {
					t.Fatalf("balance = %d, want %d", r.balance(1), want)
				}
			}
			r.wrapped.SetMaxOpenConns(1)
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
			r.wantNoLog()
		})
	}
}
