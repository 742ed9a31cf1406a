package crash

import (
	"context"
	"fmt"
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

var killedWrites = map[string]struct {
	statements []string
	// last is what makes it take effect.
	last     string
	balances []int
}{
	"a write": {
		[]string{"INSERT INTO account VALUES (2, 7)"}, "INSERT INTO account", []int{1, 7},
	},
	"a local transaction": {
		[]string{"UPDATE account SET balance = 11 WHERE id = 1", "INSERT INTO account VALUES (2, 7)"}, "COMMIT", []int{11, 7},
	},
}

func TestJobFinishesWriterKilledBeforeItsWrite(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, w := range killedWrites {
			for _, late := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, arrives late: %v", name, late), func(t *testing.T) {
					t.Parallel()
					r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db))
					r.Account(1)
					reached, release := p.Hold(testproxy.Text(w.last))
					writer := r.Writer(r.LogDB, w.statements...)
					rig.WaitFor(t, "the write was held on its way", reached)
					writer.Kill()
					r.WantBalances(1)
					if late {
						release()
						rig.Eventually(t, "the late message has been carried out", func() bool {
							return r.Count("SELECT COUNT(*) FROM account") == 2
						})
					} else {
						p.CutAll()
						release()
					}
					if report := r.DeliverAfterTheLease(); (report.Assumed == 1) != late {
						t.Errorf("the job: %s, with the write carried out before: %v", report, late)
					}
					r.WantBalances(w.balances...)
					r.WantNoLog()
				})
			}
		}
	})
	t.Run(testdb.DriverSQLite, func(t *testing.T) {
		t.Parallel()
		for name, w := range killedWrites {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r, writer, free := waitingOnSQLite(t, w.statements)
				writer.Kill()
				free()
				r.WantBalances(1)
				r.DeliverAfterTheLease()
				r.WantBalances(w.balances...)
				r.WantNoLog()
			})
		}
	})
}

// waitingOnSQLite starts a writer with its entries written and its COMMIT waiting for a reader,
// until free is called. With the WAL it would not wait.
func waitingOnSQLite(t *testing.T, statements []string) (r *rig.Rig, writer *rig.Process, free func()) {
	t.Helper()
	db := testdb.SQLite(t)
	db.DSN = "file:" + db.Name + "?_pragma=busy_timeout(60000)"
	r = rig.New(t, db)
	r.Account(1)
	free = readOn(r)
	writer = r.Writer(r.LogDB, statements...)
	rig.Eventually(t, "the write is logged", func() bool { return r.Left() == len(statements) })
	return r, writer, free
}

// readOn keeps a read transaction open in SQLite's target until free is called.
func readOn(r *rig.Rig) (free func()) {
	r.T.Helper()
	conn, err := r.Bare.Conn(context.Background())
	if err != nil {
		r.T.Fatal(err)
	}
	var n int
	_, err = conn.ExecContext(context.Background(), "BEGIN")
	if err == nil {
		err = conn.QueryRowContext(context.Background(), "SELECT COUNT(*) FROM account").Scan(&n)
	}
	if err != nil {
		r.T.Fatal(err)
	}
	return func() {
		if _, err := conn.ExecContext(context.Background(), "ROLLBACK"); err != nil {
			r.T.Error(err)
		}
		_ = conn.Close()
	}
}

func TestJobRepeatsWriterKilledBeforeRemoval(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, w := range killedWrites {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := rig.New(t, rig.FreshLike(t, db))
				r.Account(1)
				p := testproxy.New(t, r.LogDB.Addr())
				reached, release := p.HoldRun("DELETE FROM transaction_log")
				writer := r.Writer(r.LogDB.Via(p.Addr()), w.statements...)
				rig.WaitFor(t, "the removal was held on its way", reached)
				writer.Kill()
				r.WantBalances(w.balances...)
				p.CutAll()
				release()
				if report := r.DeliverAfterTheLease(); report.Assumed != 1 {
					t.Errorf("the job: %s, want the duplicate key taken for what it is", report)
				}
				r.WantBalances(w.balances...)
				r.WantNoLog()
			})
		}
	})
}

func TestSQLiteWriterKilledBeforeRemoval(t *testing.T) {
	t.Parallel()
	for name, w := range killedWrites {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, writer, free := waitingOnSQLite(t, w.statements)
			// Now the removal has to wait, and the write has not.
			log, err := r.LogPool().Conn(context.Background())
			if err == nil {
				_, err = log.ExecContext(context.Background(), "BEGIN IMMEDIATE")
			}
			if err != nil {
				t.Fatal(err)
			}
			free()
			rig.Eventually(t, "the write is applied", func() bool {
				var n int
				err := r.Bare.QueryRow("SELECT COUNT(*) FROM account").Scan(&n)
				return err == nil && n == 2
			})
			writer.Kill()
			if _, err := log.ExecContext(context.Background(), "ROLLBACK"); err != nil {
				t.Fatal(err)
			}
			_ = log.Close()
			if report := r.DeliverAfterTheLease(); report.Assumed != 1 {
				t.Errorf("the job: %s, want the duplicate key taken for what it is", report)
			}
			r.WantBalances(w.balances...)
			r.WantNoLog()
		})
	}
}

func TestSurvivingWriterLeavesNothingToTheJob(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, w := range killedWrites {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := rig.New(t, rig.FreshLike(t, db))
				r.Account(1)
				writer := r.RunWriter(rig.WriterTask{Target: r.DB, Log: r.LogDB, Lease: rig.Patience, Statements: w.statements})
				if status := writer.Status(); status != 0 {
					lines, _ := writer.Said()
					t.Fatalf("the writer ended with status %d: %v", status, lines)
				}
				r.WantBalances(w.balances...)
				r.WantNoLog()
			})
		}
	})
}
