package session

import (
	"context"
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// A pooler answers for a lost server with an error that ends the session. It does not know the
// outcome of the statements it had passed on.
func TestPoolersLostServerErrorIsNoRefusal(t *testing.T) {
	t.Parallel()
	rig.Poolers(t)
	for _, at := range []string{"COMMIT", "INSERT INTO bed_receipt", "INSERT INTO transaction_log"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			direct, logDirect := testdb.Postgres(t), testdb.Postgres(t)
			target, log := testproxy.New(t, direct.Addr()), testproxy.New(t, logDirect.Addr())
			r := rig.NewWithLog(t, testdb.PgBouncer(t, direct.Via(target.Addr())), logDirect, rig.ExactlyOnce)
			r.Bare = direct.Open(t)
			storage, err := txlog.Open(t.Context(), testdb.DriverPostgres, testdb.PgBouncer(t, logDirect.Via(log.Addr())).DSN)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = storage.Close() })
			r.Cfg.Storage = storage
			r.Wrapped = r.Open(r.DB.DSN)
			r.Account(0)
			cut := target
			if at == "INSERT INTO transaction_log" {
				cut = log
			}
			increments, lost := 0, 0
			for i := range 40 {
				struck := cut.CutAfter(testproxy.Text(at))
				err := func() error {
					if i%2 == 0 {
						_, err := r.Wrapped.Exec(rig.AddOne)
						return err
					}
					tx, err := r.Wrapped.Begin()
					if err != nil {
						return err
					}
					defer func() { _ = tx.Rollback() }()
					if _, err := tx.Exec(rig.AddOne); err != nil {
						return err
					}
					return tx.Commit()
				}()
				select {
				case <-struck:
					lost++
				default:
				}
				cut.Forget()
				if err == nil || errors.Is(err, bedsql.ErrPending) {
					increments++
				} else {
					t.Logf("reported as not done: %v", err)
				}
			}
			if lost == 0 || increments == 0 {
				t.Errorf("%d answers were lost, %d writes were reported as done", lost, increments)
			}
			job := r.Job()
			rig.Eventually(t, "the job empties the log", func() bool {
				_, _ = job.RunOnce(context.Background()) // its connections may be lost too
				return r.Left() == 0
			})
			r.WantBalances(increments)
		})
	}
}
