package truth

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

const subtract = "UPDATE account SET balance = balance - 10 WHERE id = 1"

// hangingWrites are the ways to write, each with its last message. The target never answers that
// message.
var hangingWrites = map[string]struct {
	at    string
	write func(r *rig.Rig) error
}{
	"Exec": {subtract, func(r *rig.Rig) error {
		_, err := r.Wrapped.Exec(subtract)
		return err
	}},
	"a local transaction": {"COMMIT", func(r *rig.Rig) error {
		tx := r.Begin()
		r.Must(tx, subtract)
		return tx.Commit()
	}},
	"a staged End": {subtract, func(r *rig.Rig) error {
		ctx, soft := rig.Staged(r.T)
		r.Stage(ctx, r.Wrapped, subtract)
		return soft.End(context.Background())
	}},
}

func TestAHungTargetAnswersPendingWithinAttemptTimeout(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
			for _, logging := range []bedsql.Logging{bedsql.LogBefore, bedsql.LogAlongside, bedsql.LogOnFailure} {
				for how, c := range hangingWrites {
					if how == "a staged End" && logging != bedsql.LogBefore {
						continue // it always logs first
					}
					name := how + map[bedsql.Guarantee]string{bedsql.AtLeastOnce: ", at least once", bedsql.ExactlyOnce: ", exactly once"}[guarantee] +
						[]string{", logged before", ", alongside", ", on failure"}[logging]
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db), func(cfg *bedsql.Config) {
							// Unless it is renewed, the lease ends before the attempt is cut off.
							cfg.Guarantee, cfg.Logging, cfg.AttemptTimeout, cfg.Lease = guarantee, logging, 5*time.Second, 4*time.Second
						})
						r.Account(100)
						r.Must(r.Wrapped, "UPDATE account SET balance = 100 WHERE id = 1") // dials, and finds the receipts
						r.WantNoLog()
						hung := p.Mute(testproxy.Text(c.at))
						sent := p.Count(testproxy.Text("balance - 10"))
						done := make(chan error, 1)
						go func() { done <- c.write(r) }()
						rig.WaitFor(t, "the target hangs", hung)
						if report := r.RunOnce(); report.Claimed != 0 {
							t.Errorf("the job took what its writer is busy with: %s", report)
						}
						err := <-done
						if !errors.Is(err, bedsql.ErrPending) {
							t.Fatalf("%v, want ErrPending", err)
						}
						rig.WantOutcomeOf(t, how, err, bedsql.OutcomeAccepted)
						if n := sent(); n != 1 {
							t.Errorf("it was sent %d times, want once", n)
						}
						// On MySQL a COMMIT of its own would follow: without it nothing is applied.
						uncommitted := guarantee == bedsql.ExactlyOnce && c.at == subtract && db.Driver == testdb.DriverMySQL && testdb.MySQLPath()
						if u := r.WantOneLog(); u.InDoubt == uncommitted || u.Leased {
							t.Errorf("the entry is %+v, want it in doubt %v and handed over", u, !uncommitted)
						}
						p.CutAll()
						if guarantee == bedsql.ExactlyOnce {
							if report := r.RunOnce(); report.Delivered != 1 {
								t.Errorf("the job: %s", report)
							}
							r.WantBalances(90)
							r.WantNoLog()
						}
						// The hung connection is not used again.
						r.Must(r.Wrapped, "UPDATE account SET balance = 7 WHERE id = 1")
						r.WantBalances(7)
					})
				}
			}
		}
	})
}

func TestHangingDialIsPendingWithinAttemptTimeout(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
			silent, err := net.Listen("tcp", "127.0.0.1:0") // it takes connections and says nothing
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = silent.Close() }()
			r := rig.New(t, rig.FreshLike(t, db), func(cfg *bedsql.Config) {
				cfg.Guarantee, cfg.AttemptTimeout = guarantee, 200*time.Millisecond
			})
			r.Account(100)
			hung := r.Open(r.DB.Via(silent.Addr().String()).DSN)
			_, err = hung.Exec(subtract)
			r.WantOutcome(rig.Pending, err)
			if u := r.WantOneLog(); u.InDoubt {
				t.Error("the entry is in doubt, although nothing was sent")
			}
		}
	})
}

func TestHungTargetIsAwaitedWithoutAttemptTimeout(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, func(cfg *bedsql.Config) { cfg.AttemptTimeout = -1 })
		r.Account(100)
		free := r.BlockRow(1)
		running := r.Running("UPDATE account")
		done := make(chan error, 1)
		go func() {
			_, err := r.Wrapped.Exec(subtract)
			done <- err
		}()
		running()
		free()
		r.WantOutcome(rig.Delivered, <-done)
		r.WantBalances(90)
	})
}
