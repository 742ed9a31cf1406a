package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// notReplayable are transactions that must not be run again, with the reasons in the log. Each sets
// the balance of account 1 to 10.
var notReplayable = map[string]struct {
	only   string // the one kind of database that has it; empty for all
	reason string
	change func(*bedsql.Config)
	run    func(r *rig, conn *sql.Conn, tx *sql.Tx)
}{
	"a SELECT before a write": {reason: "read before", run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
		var b int
		if err := tx.QueryRow("SELECT balance FROM account WHERE id = 1").Scan(&b); err != nil {
			r.t.Fatal(err)
		}
		r.must(tx, setBalance, b+9, 1)
	}},
	"a SELECT FOR UPDATE sent through Exec": {reason: "read before", run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
		r.must(tx, "SELECT balance FROM account WHERE id = 1 FOR UPDATE")
		r.must(tx, setBalance, 10, 1)
	}},
	"a SELECT between writes, prepared": {reason: "read before", run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
		r.must(tx, setBalance, 10, 1)
		st, err := tx.Prepare("SELECT balance FROM account")
		if err != nil {
			r.t.Fatal(err)
		}
		rows, err := st.Query()
		if err != nil {
			r.t.Fatal(err)
		}
		_ = rows.Close()
		r.must(tx, setBalance, 20, 2)
	}},
	"a generated id and a statement behind it": {only: testdb.DriverMySQL, reason: "id that the INSERT generated", run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
		r.must(tx, "INSERT INTO entry (what) VALUES ('a')")
		r.must(tx, setBalance, 10, 1)
	}},
	"a procedure": {reason: "not plain DML", run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
		r.must(tx, "CALL give(1)")
		r.must(tx, setBalance, 10, 1)
	}},
	"a procedure last": {reason: "not plain DML", run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
		r.must(tx, setBalance, 10, 1)
		r.must(tx, "CALL give(2)")
	}},
	"an anonymous block": {only: testdb.DriverPostgres, reason: "not plain DML", run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
		r.must(tx, "DO $$ BEGIN UPDATE account SET balance = 5 WHERE id = 2; END $$")
		r.must(tx, setBalance, 10, 1)
	}},
	"COPY": {only: testdb.DriverPostgres, reason: "not plain DML", run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
		r.must(tx, setBalance, 10, 1)
		r.must(tx, "COPY account FROM '/dev/null'")
	}},
	"SET LOCAL": {only: testdb.DriverPostgres, reason: "not plain DML", run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
		r.must(tx, "SET LOCAL search_path = public")
		r.must(tx, setBalance, 10, 1)
	}},
	"DDL": {only: testdb.DriverPostgres, reason: "not plain DML", run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
		r.must(tx, "CREATE TABLE other (id INT)")
		r.must(tx, setBalance, 10, 1)
	}},
	"a user variable": {only: testdb.DriverMySQL, reason: "depends on its session", run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
		r.must(tx, setBalance, 10, 1)
		r.must(tx, "UPDATE account SET balance = COALESCE(@v, 2) WHERE id = 2")
	}},
	"raw access": {reason: "raw access", run: func(r *rig, conn *sql.Conn, tx *sql.Tx) {
		r.must(tx, setBalance, 10, 1)
		if err := conn.Raw(func(dc any) error {
			_, err := dc.(*bedsql.Conn).Raw(context.Background())
			return err
		}); err != nil {
			r.t.Fatal(err)
		}
	}},
	"RETURNING through Query": {reason: "returned rows", run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
		var id int
		if err := tx.QueryRow("INSERT INTO account VALUES (7, 7) RETURNING id").Scan(&id); err != nil {
			r.t.Fatal(err)
		}
		r.must(tx, setBalance, 10, 1)
	}},
	"Unlogged inside": {reason: "Unlogged", run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
		r.must(tx, setBalance, 10, 1)
		if _, err := tx.ExecContext(bedsql.Unlogged(context.Background()), r.q(setBalance), 20, 2); err != nil {
			r.t.Fatal(err)
		}
	}},
	"more statements than the limit": {
		reason: "more than 2 statements", change: func(c *bedsql.Config) { c.MaxUnitStatements = 2 },
		run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
			for _, b := range []int{8, 9, 10} {
				r.must(tx, setBalance, b, 1)
			}
		},
	},
	"more bytes than the limit": {
		reason: "larger than 1000 bytes", change: func(c *bedsql.Config) { c.MaxUnitBytes = 1000 },
		run: func(r *rig, _ *sql.Conn, tx *sql.Tx) {
			r.must(tx, setBalance+" /* "+strings.Repeat("x", 900)+" */", 9, 1)
			r.must(tx, setBalance, 10, 1)
		},
	},
	"rolled back to a savepoint set under Raw": {reason: "raw access", run: func(r *rig, conn *sql.Conn, tx *sql.Tx) {
		r.must(tx, setBalance, 10, 1)
		rawExec(r, conn, "SAVEPOINT hidden")
		r.must(tx, setBalance, 11, 1)
		r.must(tx, "ROLLBACK TO hidden")
	}},
}

// eachNotReplayable runs f for each of them, begun on a rig whose target is
// behind a proxy.
func eachNotReplayable(t *testing.T, f func(t *testing.T, r *rig, p *testproxy.Proxy, tx *sql.Tx, reason string)) {
	t.Helper()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, c := range notReplayable {
			if c.only != "" && c.only != db.Driver {
				continue
			}
			t.Run(name, func(t *testing.T) {
				change := c.change
				if change == nil {
					change = func(*bedsql.Config) {}
				}
				r, p := newRigBehindProxy(t, freshLike(t, db), change)
				r.account(1, 2)
				if db.Driver == testdb.DriverMySQL {
					r.exec("CREATE TABLE entry (id INT PRIMARY KEY AUTO_INCREMENT, what TEXT)",
						"CREATE PROCEDURE give(n INT) UPDATE account SET balance = 20 WHERE id = n")
				} else {
					r.exec("CREATE PROCEDURE give(n INT) LANGUAGE SQL AS 'UPDATE account SET balance = 20 WHERE id = n'")
				}
				conn := r.conn()
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
	eachNotReplayable(t, func(t *testing.T, r *rig, p *testproxy.Proxy, tx *sql.Tx, reason string) {
		p.CutAfter(testproxy.Text("COMMIT"))
		pending := wantPending(t, tx.Commit())
		if !pending.Parked {
			t.Errorf("the error does not say that the unit is parked: %v", pending)
		}
		r.wantBalances(10)
		u := r.wantParked(reason)
		if !strings.Contains(u.NotReplayable, reason) || !u.InDoubt || u.ID != pending.EntryID {
			t.Errorf("the log holds %+v, want unit %s in doubt and not replayable because %q", u, pending.EntryID, reason)
		}
		r.exec("UPDATE account SET balance = 77 WHERE id = 1")
		if report := r.runOnce(); report.Claimed != 0 {
			t.Errorf("the job touched it: %v", report)
		}
		// Not even a person's word makes the job run it again.
		if err := r.storage.Retry(context.Background(), u.ID); err != nil {
			t.Fatal(err)
		}
		if report := r.runOnce(); report.Parked != 1 {
			t.Errorf("the job did not park it again: %v", report)
		}
		r.wantParked(reason)
		r.wantBalances(77)
	})
}

func TestUnreplayableUnitIsRefusedAfterBrokenConnection(t *testing.T) {
	t.Parallel()
	eachNotReplayable(t, func(t *testing.T, r *rig, p *testproxy.Proxy, tx *sql.Tx, _ string) {
		p.CutBefore(testproxy.Text("nosuch"))
		r.fails(tx, "SELECT 1 FROM nosuch")
		err := tx.Commit()
		if err == nil || errors.Is(err, bedsql.ErrPending) {
			t.Errorf("the error is %v, want the driver's own", err)
		}
		r.wantNoLog()
		r.wantBalances(1, 2)
	})
}

func TestUnreplayableUnitIsRefusedBeforeItsCommit(t *testing.T) {
	t.Parallel()
	r, p := newRigBehindProxy(t, testdb.MySQL(t))
	r.account(1)
	tx := r.begin()
	notReplayable["a SELECT before a write"].run(r, nil, tx)
	p.CutAll()
	err := tx.Commit()
	if err == nil || errors.Is(err, bedsql.ErrPending) {
		t.Errorf("the error is %v, want the driver's own", err)
	}
	r.wantNoLog()
	r.wantBalances(1)
}

func TestAUnitWithoutReadsStaysReplayable(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		only string
		run  func(r *rig, tx *sql.Tx)
		want int // statements
	}{
		"a SELECT behind the last write": {want: 1, run: func(r *rig, tx *sql.Tx) {
			r.must(tx, setBalance, 10, 1)
			var n int
			if err := tx.QueryRow("SELECT COUNT(*) FROM account").Scan(&n); err != nil {
				r.t.Fatal(err)
			}
		}},
		"a generated id last": {only: testdb.DriverMySQL, want: 2, run: func(r *rig, tx *sql.Tx) {
			r.must(tx, setBalance, 10, 1)
			r.must(tx, "INSERT INTO entry (what) VALUES ('a')")
		}},
		"an id that was given": {want: 2, run: func(r *rig, tx *sql.Tx) {
			r.must(tx, "INSERT INTO account VALUES (3, 3)")
			r.must(tx, setBalance, 10, 1)
		}},
		"as many statements as the limit": {want: 3, run: func(r *rig, tx *sql.Tx) {
			for _, b := range []int{8, 9, 10} {
				r.must(tx, setBalance, b, 1)
			}
		}},
		"a first statement larger than the limit": {want: 1, run: func(r *rig, tx *sql.Tx) {
			r.must(tx, setBalance+" /* "+strings.Repeat("x", 2000)+" */", 10, 1)
		}},
	}
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, c := range cases {
			if c.only != "" && c.only != db.Driver {
				continue
			}
			t.Run(name, func(t *testing.T) {
				r, p := newRigBehindProxy(t, freshLike(t, db), noSyncRetry, func(c *bedsql.Config) {
					c.MaxUnitStatements, c.MaxUnitBytes = 3, 1000
				})
				r.account(1, 2)
				if db.Driver == testdb.DriverMySQL {
					r.exec("CREATE TABLE entry (id INT PRIMARY KEY AUTO_INCREMENT, what TEXT)")
				}
				tx := r.begin()
				c.run(r, tx)
				p.CutBefore(testproxy.Text("COMMIT"))
				wantPending(t, tx.Commit())
				if u := r.wantOneLog(); u.NotReplayable != "" || u.Parked || len(u.Statements) != c.want {
					t.Errorf("the log holds %+v, want a replayable unit of %d statements", u, c.want)
				}
				if report := r.runOnce(); report.Delivered != 1 {
					t.Errorf("the job's round: %v", report)
				}
				r.wantBalances(10, 2)
				r.wantNoLog()
			})
		}
	})
}
