package truth

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestAPanicOfTheDriverLosesNoWrite(t *testing.T) {
	t.Parallel()
	const second = "UPDATE account SET balance = balance + 1 WHERE id = 2"
	for name, write := range map[string]func(db *sql.DB) error{
		"a write": func(db *sql.DB) error {
			_, err := db.Exec(second)
			return err
		},
		"a staged soft transaction": func(db *sql.DB) error {
			ctx, soft, err := bedsql.Begin(context.Background(), bedsql.Staged())
			if err != nil {
				return err
			}
			for _, s := range []string{rig.AddOne, second} {
				if _, err := db.ExecContext(ctx, s); err != nil {
					return err
				}
			}
			return soft.End(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				r := rig.New(t, db, rig.ExactlyOnce, func(c *bedsql.Config) { c.Lease = 5 * time.Second })
				r.ReceiptTable()
				r.Account(0, 0)
				c, pool := r.OpenPanicking()
				pool.SetMaxOpenConns(1)
				c.PanicAt("WHERE id = 2")
				rig.WantPanic(t, func() { _ = write(pool) })
				if err := write(pool); err != nil {
					t.Fatal(err)
				}
				r.Drain(r.Job())
				if b := r.Balance(2); b != 2 {
					t.Errorf("balance %d after two increments", b)
				}
				if a, b := r.Balance(1), r.Balance(2); a != 0 && a != b {
					t.Errorf("a unit was applied in part: balances %d and %d", a, b)
				}
			})
		})
	}
}

func TestStagedDriverPanicReachesTheCallerOfEnd(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.MySQL(t), rig.ExactlyOnce, func(c *bedsql.Config) { c.Lease = 5 * time.Second })
	r.ReceiptTable()
	r.Account(0, 0)
	c, pool := r.OpenPanicking()
	another := rig.TargetOf(t, r.DB)
	another.DataSource, another.Dialect = "another", rig.Stepwise(another.Dialect)
	ctx, soft, err := bedsql.Begin(context.Background(), bedsql.Staged())
	if err != nil {
		t.Fatal(err)
	}
	r.Stage(ctx, r.OpenTarget(another), rig.AddOne)
	r.Stage(ctx, pool, "UPDATE account SET balance = balance + 1 WHERE id = 2")
	c.PanicAt("WHERE id = 2")
	rig.WantPanic(t, func() { _ = soft.End(ctx) })
	r.Drain(r.Job())
	r.WantBalances(1, 1)
}
