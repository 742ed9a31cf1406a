package exactlyonce

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// reads are the ways to read a balance before it is written.
var reads = map[string]string{
	"SELECT FOR UPDATE": "SELECT balance FROM account WHERE id = 1 FOR UPDATE",
	"plain SELECT":      "SELECT balance FROM account WHERE id = 1",
}

// session is a connection or a local transaction.
type session interface {
	rig.Executor
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// addAsRead reads the balance of account 1 and writes the result plus 10.
func addAsRead(r *rig.Rig, on session, read string) {
	r.T.Helper()
	var balance int
	if err := on.QueryRowContext(context.Background(), read).Scan(&balance); err != nil {
		r.T.Fatal(err)
	}
	r.Must(on, "UPDATE account SET balance = ? WHERE id = 1", balance+10)
}

func TestLostCommitOfReadValuesLosesNoUpdate(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for how, read := range reads {
			for _, applied := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, COMMIT arrived: %v", how, applied), func(t *testing.T) {
					t.Parallel()
					r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db), rig.ExactlyOnce)
					committing := rig.CommitsOf(p)
					r.ReceiptTable()
					r.Account(100)
					tx := r.Begin()
					addAsRead(r, tx, read)
					cut := p.CutBefore
					if applied {
						cut = p.CutAfter
					}
					sent := false // one message is matched at a time
					lost := cut(func(m []byte) bool {
						sent = committing.Match(m)
						return sent
					})
					// Whatever the caller does about it comes behind this.
					deciding, decide := p.Hold(func(m []byte) bool { return sent && testproxy.Text("INSERT INTO bed_receipt")(m) })
					defer decide()
					done := make(chan error, 1)
					go func() { done <- tx.Commit() }()
					rig.WaitFor(t, "COMMIT was lost", lost)
					rig.WaitFor(t, "the caller asked for its receipt", deciding)
					r.Exec("UPDATE account SET balance = balance + 1 WHERE id = 1")
					decide()
					err := <-done
					r.WantNoLog()
					r.WantReceipts(1)
					void := r.Count("SELECT COUNT(*) FROM bed_receipt WHERE void = 1")
					if applied {
						r.WantBalances(111)
						if err != nil || void != 0 {
							t.Errorf("the COMMIT was carried out: the caller got %v, %d receipts are void", err, void)
						}
						return
					}
					r.WantBalances(101)
					if err == nil || errors.Is(err, bedsql.ErrPending) || void != 1 {
						t.Errorf("the COMMIT never arrived: the caller got %v, %d receipts are void", err, void)
					}
				})
			}
		}
	})
}

func TestLateCommitIsEitherFoundOrVoided(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for how, read := range reads {
			t.Run(how, func(t *testing.T) {
				t.Parallel()
				r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db), rig.ExactlyOnce)
				committing := rig.CommitsOf(p)
				r.Bare.SetMaxOpenConns(1)
				r.ReceiptTable()
				r.Account(100)
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				conn := r.Conn()
				tx, err := conn.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				addAsRead(r, tx, read)
				held, arrive := p.Hold(committing.Match)
				defer arrive()
				done := make(chan error, 1)
				go func() { done <- tx.Commit() }()
				rig.WaitFor(t, "COMMIT was held", held)
				leave()
				pending := rig.WantPending(t, <-done)
				// The receipt was sent before, so the job waits for it.
				job := r.Job(func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1000 })
				round := make(chan asyncjob.Report, 1)
				go func() {
					report, err := job.RunOnce(context.Background())
					if err != nil {
						t.Error(err)
					}
					round <- report
				}()
				var report asyncjob.Report
				ended := false
				rig.Eventually(t, "the job waits for the receipt, or has decided", func() bool {
					select {
					case report = <-round:
						ended = true
					default:
					}
					return ended || r.Waiting() > 0
				})
				arrive()
				if !ended {
					report = <-round
				}
				switch {
				case report.Delivered == 1:
					r.WantBalances(110)
					r.WantNoLog()
				case report.Parked == 1:
					r.WantParked("the application has to do it anew")
					// This message must not be applied, no matter when it arrives.
					_ = conn.Close()
					_, _ = r.Wrapped.Close(), job.Close()
					rig.Eventually(t, "the session of the late COMMIT has ended", func() bool { return others(r) == 0 })
					r.WantBalances(100)
				default:
					t.Errorf("entry %s: the job neither delivered nor parked it: %s", pending.EntryID, report)
				}
			})
		}
	})
}

func TestAttemptAfterVoidingAppliesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.ReceiptTable()
		r.Account(100, 100)
		r.Abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
		receipted(r)
		u := r.WantOneLog()
		if out := r.OnTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
			return attempt.Void(context.Background(), d, conn, u, rig.ReceiptsOf(r))
		}); !out.Voided {
			t.Fatalf("voiding what was never begun: %+v", out)
		}
		if report := r.RunOnce(); report.Parked != 1 {
			t.Errorf("the job: %s, want the unit parked", report)
		}
		r.WantBalances(100, 100)
		r.WantParked("it was decided before")
	})
}
