package localtx

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// notReplayable are transactions that must not be run again, with the reasons in the log. Each sets
// the balance of account 1 to 10.
var notReplayable = map[string]struct {
	only    string // the one kind of database that has it; empty for all
	returns bool   // it needs RETURNING
	reason  string
	change  func(*bedsql.Config)
	run     func(r *rig.Rig, conn *sql.Conn, tx *sql.Tx)
}{
	"a SELECT before a write": {reason: "read before", run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
		var b int
		if err := tx.QueryRow("SELECT balance FROM account WHERE id = 1").Scan(&b); err != nil {
			r.T.Fatal(err)
		}
		r.Must(tx, rig.SetBalance, b+9, 1)
	}},
	"a SELECT FOR UPDATE sent through Exec": {reason: "read before", run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
		r.Must(tx, "SELECT balance FROM account WHERE id = 1 FOR UPDATE")
		r.Must(tx, rig.SetBalance, 10, 1)
	}},
	"a SELECT between writes, prepared": {reason: "read before", run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
		r.Must(tx, rig.SetBalance, 10, 1)
		st, err := tx.Prepare("SELECT balance FROM account")
		if err != nil {
			r.T.Fatal(err)
		}
		rows, err := st.Query()
		if err != nil {
			r.T.Fatal(err)
		}
		_ = rows.Close()
		r.Must(tx, rig.SetBalance, 20, 2)
	}},
	"a generated id and a statement behind it": {only: testdb.DriverMySQL, reason: "id that the INSERT generated", run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
		r.Must(tx, "INSERT INTO entry (what) VALUES ('a')")
		r.Must(tx, rig.SetBalance, 10, 1)
	}},
	"a procedure": {reason: "not plain DML", run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
		r.Must(tx, "CALL give(1)")
		r.Must(tx, rig.SetBalance, 10, 1)
	}},
	"a procedure last": {reason: "not plain DML", run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
		r.Must(tx, rig.SetBalance, 10, 1)
		r.Must(tx, "CALL give(2)")
	}},
	"an anonymous block": {only: testdb.DriverPostgres, reason: "not plain DML", run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
		r.Must(tx, "DO $$ BEGIN UPDATE account SET balance = 5 WHERE id = 2; END $$")
		r.Must(tx, rig.SetBalance, 10, 1)
	}},
	"COPY": {only: testdb.DriverPostgres, reason: "not plain DML", run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
		r.Must(tx, rig.SetBalance, 10, 1)
		r.Must(tx, "COPY account FROM '/dev/null'")
	}},
	"SET LOCAL": {only: testdb.DriverPostgres, reason: "not plain DML", run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
		r.Must(tx, "SET LOCAL search_path = public")
		r.Must(tx, rig.SetBalance, 10, 1)
	}},
	"DDL": {only: testdb.DriverPostgres, reason: "not plain DML", run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
		r.Must(tx, "CREATE TABLE other (id INT)")
		r.Must(tx, rig.SetBalance, 10, 1)
	}},
	"a user variable": {only: testdb.DriverMySQL, reason: "depends on its session", run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
		r.Must(tx, rig.SetBalance, 10, 1)
		r.Must(tx, "UPDATE account SET balance = COALESCE(@v, 2) WHERE id = 2")
	}},
	"raw access": {reason: "raw access", run: func(r *rig.Rig, conn *sql.Conn, tx *sql.Tx) {
		r.Must(tx, rig.SetBalance, 10, 1)
		if err := conn.Raw(func(dc any) error {
			_, err := dc.(*bedsql.Conn).Raw(context.Background())
			return err
		}); err != nil {
			r.T.Fatal(err)
		}
	}},
	"RETURNING through Query": {reason: "returned rows", returns: true, run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
		var id int
		if err := tx.QueryRow("INSERT INTO account VALUES (7, 7) RETURNING id").Scan(&id); err != nil {
			r.T.Fatal(err)
		}
		r.Must(tx, rig.SetBalance, 10, 1)
	}},
	"Unlogged inside": {reason: "Unlogged", run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
		r.Must(tx, rig.SetBalance, 10, 1)
		if _, err := tx.ExecContext(bedsql.Unlogged(context.Background()), r.Q(rig.SetBalance), 20, 2); err != nil {
			r.T.Fatal(err)
		}
	}},
	"more statements than the limit": {
		reason: "more than 2 statements", change: func(c *bedsql.Config) { c.MaxUnitStatements = 2 },
		run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
			for _, b := range []int{8, 9, 10} {
				r.Must(tx, rig.SetBalance, b, 1)
			}
		},
	},
	"more bytes than the limit": {
		reason: "larger than 1000 bytes", change: func(c *bedsql.Config) { c.MaxUnitBytes = 1000 },
		run: func(r *rig.Rig, _ *sql.Conn, tx *sql.Tx) {
			r.Must(tx, rig.SetBalance+" /* "+strings.Repeat("x", 900)+" */", 9, 1)
			r.Must(tx, rig.SetBalance, 10, 1)
		},
	},
	"rolled back to a savepoint set under Raw": {reason: "raw access", run: func(r *rig.Rig, conn *sql.Conn, tx *sql.Tx) {
		r.Must(tx, rig.SetBalance, 10, 1)
		rig.RawExec(r, conn, "SAVEPOINT hidden")
		r.Must(tx, rig.SetBalance, 11, 1)
		r.Must(tx, "ROLLBACK TO hidden")
	}},
}

// eachNotReplayable runs f for each of them, begun on a rig whose target is
// behind a proxy.
func eachNotReplayable(t *testing.T, f func(t *testing.T, r *rig.Rig, p *testproxy.Proxy, tx *sql.Tx, reason string)) {
	t.Helper()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, c := range notReplayable {
			if c.only != "" && c.only != db.Driver {
				continue
			}
			t.Run(name, func(t *testing.T) {
				change := c.change
				if change == nil {
					change = func(*bedsql.Config) {}
				}
				r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db), change)
				r.Account(1, 2)
				if c.returns && !r.Returns(t) {
					return
				}
				if db.Driver == testdb.DriverMySQL {
					r.Exec("CREATE TABLE entry (id INT PRIMARY KEY AUTO_INCREMENT, what TEXT)",
						"CREATE PROCEDURE give(n INT) UPDATE account SET balance = 20 WHERE id = n")
				} else {
					r.Exec("CREATE PROCEDURE give(n INT) LANGUAGE SQL AS 'UPDATE account SET balance = 20 WHERE id = n'")
				}
				conn := r.Conn()
				tx, err := conn.BeginTx(context.Background(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback() }()
				c.run(r, conn, tx)
				f(t, r, p, tx, c.reason)
			})
		}
	})
}

func TestUnreplayableUnitWithUnansweredCommitIsParked(t *testing.T) {
	t.Parallel()
	eachNotReplayable(t, func(t *testing.T, r *rig.Rig, p *testproxy.Proxy, tx *sql.Tx, reason string) {
		p.CutAfter(testproxy.Commit)
		pending := rig.WantPending(t, tx.Commit())
		if !pending.Parked {
			t.Errorf("the error does not say that the unit is parked: %v", pending)
		}
		r.WantBalances(10)
		u := r.WantParked(reason)
		if !strings.Contains(u.NotReplayable, reason) || !u.InDoubt || u.ID != pending.EntryID {
			t.Errorf("the log holds %+v, want unit %s in doubt and not replayable because %q", u, pending.EntryID, reason)
		}
		r.Exec("UPDATE account SET balance = 77 WHERE id = 1")
		if report := r.RunOnce(); report.Claimed != 0 {
			t.Errorf("the job touched it: %v", report)
		}
		// Not even a person's word makes the job run it again.
		if err := r.Storage.Retry(context.Background(), u.ID); err != nil {
			t.Fatal(err)
		}
		if report := r.RunOnce(); report.Parked != 1 {
			t.Errorf("the job did not park it again: %v", report)
		}
		r.WantParked(reason)
		r.WantBalances(77)
	})
}

func TestUnreplayableUnitIsRefusedAfterBrokenConnection(t *testing.T) {
	t.Parallel()
	eachNotReplayable(t, func(t *testing.T, r *rig.Rig, p *testproxy.Proxy, tx *sql.Tx, _ string) {
		p.CutBefore(testproxy.Text("nosuch"))
		r.Fails(tx, "SELECT 1 FROM nosuch")
		err := tx.Commit()
		if err == nil || errors.Is(err, bedsql.ErrPending) {
			t.Errorf("the error is %v, want the driver's own", err)
		}
		r.WantNoLog()
		r.WantBalances(1, 2)
	})
}

func TestUnreplayableUnitIsRefusedBeforeItsCommit(t *testing.T) {
	t.Parallel()
	r, p := rig.NewBehindProxy(t, testdb.MySQL(t))
	r.Account(1)
	tx := r.Begin()
	notReplayable["a SELECT before a write"].run(r, nil, tx)
	p.CutAll()
	err := tx.Commit()
	if err == nil || errors.Is(err, bedsql.ErrPending) {
		t.Errorf("the error is %v, want the driver's own", err)
	}
	r.WantNoLog()
	r.WantBalances(1)
}

func TestAUnitWithoutReadsStaysReplayable(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		only string
		run  func(r *rig.Rig, tx *sql.Tx)
		want int // statements
	}{
		"a SELECT behind the last write": {want: 1, run: func(r *rig.Rig, tx *sql.Tx) {
			r.Must(tx, rig.SetBalance, 10, 1)
			var n int
			if err := tx.QueryRow("SELECT COUNT(*) FROM account").Scan(&n); err != nil {
				r.T.Fatal(err)
			}
		}},
		"a generated id last": {only: testdb.DriverMySQL, want: 2, run: func(r *rig.Rig, tx *sql.Tx) {
			r.Must(tx, rig.SetBalance, 10, 1)
			r.Must(tx, "INSERT INTO entry (what) VALUES ('a')")
		}},
		"an id that was given": {want: 2, run: func(r *rig.Rig, tx *sql.Tx) {
			r.Must(tx, "INSERT INTO account VALUES (3, 3)")
			r.Must(tx, rig.SetBalance, 10, 1)
		}},
		"as many statements as the limit": {want: 3, run: func(r *rig.Rig, tx *sql.Tx) {
			for _, b := range []int{8, 9, 10} {
				r.Must(tx, rig.SetBalance, b, 1)
			}
		}},
		"a first statement larger than the limit": {want: 1, run: func(r *rig.Rig, tx *sql.Tx) {
			r.Must(tx, rig.SetBalance+" /* "+strings.Repeat("x", 2000)+" */", 10, 1)
		}},
	}
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, c := range cases {
			if c.only != "" && c.only != db.Driver {
				continue
			}
			t.Run(name, func(t *testing.T) {
				r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db), rig.NoSyncRetry, func(c *bedsql.Config) {
					c.MaxUnitStatements, c.MaxUnitBytes = 3, 1000
				})
				r.Account(1, 2)
				if db.Driver == testdb.DriverMySQL {
					r.Exec("CREATE TABLE entry (id INT PRIMARY KEY AUTO_INCREMENT, what TEXT)")
				}
				tx := r.Begin()
				c.run(r, tx)
				p.CutBefore(testproxy.Commit)
				rig.WantPending(t, tx.Commit())
				if u := r.WantOneLog(); u.NotReplayable != "" || u.Parked || len(u.Statements) != c.want {
					t.Errorf("the log holds %+v, want a replayable unit of %d statements", u, c.want)
				}
				if report := r.RunOnce(); report.Delivered != 1 {
					t.Errorf("the job's round: %v", report)
				}
				r.WantBalances(10, 2)
				r.WantNoLog()
			})
		}
	})
}
