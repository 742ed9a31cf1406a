package exactlyonce

import (
	"context"
	"database/sql/driver"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// metBreaks are the places at which the connection breaks just after a receipt
// was met.
var metBreaks = map[string]string{"at its ROLLBACK": "ROLLBACK", "at the reading": "SELECT void"}

func TestReceiptCountsWhateverBreaksAfter(t *testing.T) {
	t.Parallel()
	const twice = "UPDATE account SET balance = balance + 1 WHERE id = 2"
	inTx := func(ctx context.Context, r *rig.Rig) error {
		tx, err := r.Wrapped.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		for _, q := range []string{rig.AddOne, twice} {
			if _, err := tx.ExecContext(ctx, q); err != nil {
				return err
			}
		}
		return tx.Commit()
	}
	writes := map[string]func(context.Context, *rig.Rig) error{
		"Exec": func(ctx context.Context, r *rig.Rig) error {
			_, err := r.Wrapped.ExecContext(ctx, rig.AddOne)
			return err
		},
		"a local transaction": inTx,
		"a staged soft transaction": func(ctx context.Context, r *rig.Rig) error {
			ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
			if err != nil {
				return err
			}
			for _, q := range []string{rig.AddOne, twice} {
				if _, err := r.Wrapped.ExecContext(ctx, q); err != nil {
					return err
				}
			}
			return soft.End(ctx)
		},
	}
	for where, broken := range metBreaks {
		for name, write := range writes {
			t.Run(name+" "+where, func(t *testing.T) {
				t.Parallel()
				rig.EachServer(t, func(t *testing.T, db testdb.DB) {
					// The first attempt is applied and its answer lost; the second
					// meets its receipt.
					t.Run("a retry", func(t *testing.T) {
						t.Parallel()
						r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db), rig.ExactlyOnce)
						r.Wrapped = r.OpenStepwise()
						r.ReceiptTable()
						r.Account(0, 0)
						p.CutAfter(testproxy.Commit)
						struck := p.CutBefore(testproxy.Text(broken))
						if err := write(context.Background(), r); err != nil {
							t.Errorf("an applied write gets %v", err)
						}
						<-struck
						r.WantBalances(1)
						r.WantNoLog()
					})
					t.Run("a request sent again", func(t *testing.T) {
						t.Parallel()
						r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db))
						r.ReceiptTable()
						r.Account(0, 0)
						ctx, _ := rig.Keyed("k")
						if err := write(ctx, r); err != nil {
							t.Fatal(err)
						}
						struck := p.CutBefore(testproxy.Text(broken))
						ctx, k := rig.Keyed("k")
						if err := write(ctx, r); err != nil || !k.Replayed() {
							t.Errorf("an applied request gets %v, replayed %t", err, k.Replayed())
						}
						<-struck
						r.WantBalances(1)
						r.WantNoLog()
					})
				})
			})
		}
	}
}

func TestJobConnectionBreakingAfterAReceiptParksNothing(t *testing.T) {
	t.Parallel()
	for where, broken := range metBreaks {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := rig.NewBehindProxy(t, db, rig.ExactlyOnce, rig.NoSyncRetry)
				r.Wrapped = r.OpenStepwise()
				r.ReceiptTable()
				r.Account(0, 0)
				p.CutAfter(testproxy.Commit)
				rig.WantPending(t, r.Fails(r.Wrapped, rig.AddOne))
				tgt := rig.TargetOf(t, r.DB)
				tgt.Dialect = rig.Stepwise(tgt.Dialect)
				job := r.JobFor(asyncjob.Targets{tgt.DataSource: tgt}, func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1 })
				struck := p.CutBefore(testproxy.Text(broken))
				if report, err := job.RunOnce(context.Background()); err != nil || report.Parked != 0 {
					t.Errorf("report: %v, %v", report, err)
				}
				<-struck
				r.Drain(job)
				r.WantBalances(1)
			})
		})
	}
}

// The job looks for the receipt before it parks a unit that is out of tries. Its
// last try may be on its way then.
func TestLookBeforeParkingKeepsReceiptForLateTry(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		r.Abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
		receipted(r)
		r.ReceiptTable()
		u := r.WantOneLog()
		replay := func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
			return attempt.Replay(t.Context(), d, conn, u, rig.ReceiptsOf(r))
		}
		if out := r.OnTarget(replay); out.Err != nil {
			t.Fatal(out.Err)
		}
		r.ReceiptsAge(30 * 24 * time.Hour)
		r.Exec("UPDATE bed_receipt SET log_gone = 1")
		out := r.OnTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
			out, err := attempt.Look(t.Context(), d, conn, u, rig.ReceiptsOf(r))
			if err != nil {
				out.Err = err
			}
			return out
		})
		if out.Err != nil || !out.Found {
			t.Fatalf("the look: %+v", out)
		}
		if err := r.Storage.Discard(t.Context(), u.ID); err != nil {
			t.Fatal(err)
		}
		r.RunOnce() // purges
		r.WantReceipts(1)
		if out := r.OnTarget(replay); !out.Found {
			t.Errorf("the late try: %+v", out)
		}
		r.WantBalances(1)
	})
}
