package acceptance

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
	executor
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// addAsRead reads the balance of account 1 and writes the result plus 10.
func (r *rig) addAsRead(on session, read string) {
	r.t.Helper()
	var balance int
	if err := on.QueryRowContext(context.Background(), read).Scan(&balance); err != nil {
		r.t.Fatal(err)
	}
	r.must(on, "UPDATE account SET balance = ? WHERE id = 1", balance+10)
}

func TestLostCommitOfReadValuesLosesNoUpdate(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for how, read := range reads {
			for _, applied := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, COMMIT arrived: %v", how, applied), func(t *testing.T) {
					t.Parallel()
					r, p := newRigBehindProxy(t, freshLike(t, db), exactlyOnce)
					committing := commitsOf(p)
					r.receiptTable()
					r.account(100)
					tx := r.begin()
					r.addAsRead(tx, read)
					cut := p.CutBefore
					if applied {
						cut = p.CutAfter
					}
					lost := cut(committing.match)
					done := make(chan error, 1)
					go func() { done <- tx.Commit() }()
					waitFor(t, "COMMIT was lost", lost)
					// Whatever the caller does about it comes behind this.
					deciding, decide := p.Hold(testproxy.Text("INSERT INTO bed_receipt"))
					defer decide()
					waitFor(t, "the caller asked for its receipt", deciding)
					r.exec("UPDATE account SET balance = balance + 1 WHERE id = 1")
					decide()
					err := <-done
					r.wantNoLog()
					r.wantReceipts(1)
					void := r.count("SELECT COUNT(*) FROM bed_receipt WHERE void = 1")
					if applied {
						r.wantBalances(111)
						if err != nil || void != 0 {
							t.Errorf("the COMMIT was carried out: the caller got %v, %d receipts are void", err, void)
						}
						return
					}
					r.wantBalances(101)
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
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for how, read := range reads {
			t.Run(how, func(t *testing.T) {
				t.Parallel()
				r, p := newRigBehindProxy(t, freshLike(t, db), exactlyOnce)
				committing := commitsOf(p)
				r.bare.SetMaxOpenConns(1)
				r.receiptTable()
				r.account(100)
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				conn := r.conn()
				tx, err := conn.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.addAsRead(tx, read)
				held, arrive := p.Hold(committing.match)
				defer arrive()
				done := make(chan error, 1)
				go func() { done <- tx.Commit() }()
				waitFor(t, "COMMIT was held", held)
				leave()
				pending := wantPending(t, <-done)
				// The receipt was sent before, so the job waits for it.
				job := r.job(func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1000 })
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
				eventually(t, "the job waits for the receipt, or has decided", func() bool {
					select {
					case report = <-round:
						ended = true
					default:
					}
					return ended || r.waiting() > 0
				})
				arrive()
				if !ended {
					report = <-round
				}
				switch {
				case report.Delivered == 1:
					r.wantBalances(110)
					r.wantNoLog()
				case report.Parked == 1:
					r.wantParked("the application has to do it anew")
					// This message must not be applied, no matter when it arrives.
					_ = conn.Close()
					_, _ = r.wrapped.Close(), job.Close()
					eventually(t, "the session of the late COMMIT has ended", func() bool { return r.others() == 0 })
					r.wantBalances(100)
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
		r := newRig(t, db, exactlyOnce)
		r.receiptTable()
		r.account(100, 100)
		r.abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
		r.receipted()
		u := r.wantOneLog()
		if out := r.onTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
			return attempt.Void(context.Background(), d, conn, u, receiptsOf(r))
		}); !out.Voided {
			t.Fatalf("voiding what was never begun: %+v", out)
		}
		if report := r.runOnce(); report.Parked != 1 {
			t.Errorf("the job: %s, want the unit parked", report)
		}
		r.wantBalances(100, 100)
		r.wantParked("it was decided before")
	})
}

// onTarget makes an attempt on a connection of its own.
func (r *rig) onTarget(f func(*dialect.Dialect, driver.Conn) attempt.Outcome) attempt.Outcome {
	r.t.Helper()
	tgt := targetOf(r.t, r.db)
	conn, err := tgt.Connector.Connect(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return f(tgt.Dialect, conn)
}
