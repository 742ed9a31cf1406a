package mappers

import (
	"context"
	"testing"

	"gorm.io/gorm"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestGormTransactionCarriesEntriesOfWith(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for _, mode := range GormModes {
			t.Run(mode.Name, func(t *testing.T) {
				w := rig.NewWith(t, rig.FreshLike(t, db), rig.ExactlyOnce)
				g := OpenGorm(t, db.Driver, w.Register(), w.HomeDB.DSN, mode)
				if _, _, err := bedsql.Begin(context.Background(), bedsql.WithTx(g.Statement.ConnPool)); err == nil {
					t.Error("gorm's pool was taken for a transaction")
				}
				var soft *bedsql.SoftTransaction
				if err := g.Transaction(func(tx *gorm.DB) error {
					ctx, s, err := bedsql.Begin(context.Background(), bedsql.WithTx(tx.Statement.ConnPool))
					if err != nil {
						return err
					}
					soft = s
					w.Stage(ctx, w.Rig.Wrapped, rig.Increment, 1, 1)
					_ = tx.Transaction(func(inner *gorm.DB) error { // by a savepoint
						w.Stage(ctx, w.Rig.Wrapped, rig.Increment, 1, 1)
						w.Stage(ctx, w.Rig.Wrapped, rig.Increment, 1, 2)
						return context.Canceled
					})
					w.Stage(ctx, w.Rig.Wrapped, rig.Increment, 1, 1)
					return tx.Exec("UPDATE account SET balance = balance - ? WHERE id = ?", 1, 1).Error
				}); err != nil {
					t.Fatal(err)
				}
				if err := soft.End(context.Background()); err != nil {
					t.Fatal(err)
				}
				w.WantBalances(102, 100)
				w.WantEmpty()
				if n := w.AtHome(); n != 99 {
					t.Errorf("account 1 holds %d", n)
				}
			})
		}
	})
}

func TestSqlxTransactionCarriesEntriesOfWith(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		w := rig.NewWith(t, rig.FreshLike(t, db))
		pool := OpenSqlx(t, w.HomeDB, w.Register())
		if _, _, err := bedsql.Begin(context.Background(), bedsql.WithTx(pool)); err == nil {
			t.Error("sqlx's pool was taken for a transaction")
		}
		tx, err := pool.Beginx()
		if err != nil {
			t.Fatal(err)
		}
		b := w.With(tx.Tx, tx)
		b.Must(b.Tx, "UPDATE account SET balance = balance - ? WHERE id = ?", 1, 1)
		b.Records(1)
		b.Stage(b.Ctx, b.Rig.Wrapped, "UPDATE account SET balance = balance + ? WHERE id = ? AND 'ü' <> '?'", 1, 1)
		b.Commit()
		if err := b.End(); err != nil {
			t.Fatal(err)
		}
		w.WantBalances(102, 100)
		w.WantEmpty()
	})
}
