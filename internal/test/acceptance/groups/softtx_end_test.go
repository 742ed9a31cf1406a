package groups

import (
	"context"
	"database/sql/driver"
	"errors"
	"slices"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// If the log's answer for a write is lost, there may be no entry, so the caller must learn that
// before End, in case it dies.
func TestSoftTransactionReturnsUnknownLogWriteAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, write := range map[string]func(*rig.Rig, context.Context) error{
			"Exec": func(r *rig.Rig, ctx context.Context) error {
				_, err := r.Wrapped.ExecContext(ctx, rig.AddOne)
				return err
			},
			"Commit": func(r *rig.Rig, ctx context.Context) error {
				tx, err := r.Wrapped.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Must(tx, rig.AddOne)
				return tx.Commit()
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := rig.New(t, rig.FreshLike(t, db), func(c *bedsql.Config) {
					c.Storage = &rig.HookedStorage{Storage: c.Storage, OnAdd: func([]*entry.Unit) error { return txlog.ErrInDoubt }}
				})
				r.Account(1)
				ctx, tx := rig.Soft(t)
				err := write(r, ctx)
				if !errors.Is(err, bedsql.ErrUnknownOutcome) || !errors.Is(err, txlog.ErrInDoubt) || bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
					t.Errorf("%v, want it unknown and to unwrap to ErrInDoubt", err)
				}
				if end := tx.End(t.Context()); !errors.Is(end, txlog.ErrInDoubt) {
					t.Errorf("End: %v, want it to report the write too", end)
				}
				r.WantBalances(1)
			})
		}
	})
}

func TestEndGivesEachRefusalAndEachPendingWrite(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.NoSyncRetry)
		r.Account(1)
		duplicate, unknown := "INSERT INTO account VALUES (1, 5)", "UPDATE account SET nothing = 1"
		impatient := r.Open(rig.Impatient(db).DSN)
		ctx, tx := rig.Soft(t)
		for _, text := range []string{duplicate, unknown} {
			if _, err := r.Wrapped.ExecContext(ctx, text); err != nil {
				t.Fatal(err)
			}
		}
		free := r.BlockRow(1)
		if _, err := impatient.ExecContext(ctx, rig.AddOne); err != nil {
			t.Fatal(err)
		}
		free()
		for range 2 {
			err := tx.End(t.Context())
			var end *bedsql.EndError
			if !errors.As(err, &end) {
				t.Fatalf("%v, want an EndError", err)
			}
			refused, pending := end.Refused(), end.Pending()
			if len(end.Errors) != 3 || len(refused) != 2 || len(pending) != 1 {
				t.Fatalf("%d errors, %d refused, %d pending: %v", len(end.Errors), len(refused), len(pending), err)
			}
			for i, text := range []string{duplicate, unknown} {
				_, want := r.Bare.Exec(text)
				if refused[i].Cause.Error() != want.Error() || !errors.Is(err, refused[i].Cause) {
					t.Errorf("refusal %d is %v, want %v", i, refused[i].Cause, want)
				}
			}
			if !errors.Is(err, bedsql.ErrPending) || pending[0].EntryID == "" {
				t.Errorf("%+v is not pending", pending[0])
			}
		}
	})
}

func TestEndGivesEachRefusalOfAStagedTransaction(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		rigs := rig.News(t, testdb.NewLog(t, db.Driver))
		ctx, tx := rig.Staged(t)
		for _, r := range rigs {
			r.Stage(ctx, r.Wrapped, "UPDATE account SET nothing = 1")
		}
		var end *bedsql.EndError
		if err := tx.End(t.Context()); !errors.As(err, &end) || len(end.Refused()) != len(rigs) || len(end.Errors) != len(rigs) {
			t.Fatalf("%v, want %d refusals", err, len(rigs))
		}
		for _, r := range rigs {
			if !slices.ContainsFunc(end.Refused(), func(e *bedsql.RefusedError) bool { return e.DataSource == rig.DataSourceOf(t, r.DB) }) {
				t.Errorf("the refusal of %s is missing", r.DB.Driver)
			}
		}
	})
}

func TestDriverPanicLeavesStagedEndEnded(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(1)
		c, pool := r.OpenPanicking()
		ctx, tx := rig.Staged(t)
		if _, err := pool.ExecContext(ctx, rig.AddOne); err != nil {
			t.Fatal(err)
		}
		c.PanicAt("WHERE id = 1")
		rig.WantPanic(t, func() { _ = tx.End(t.Context()) })
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		pending := rig.WantPending(t, tx.End(ctx))
		if ctx.Err() != nil {
			t.Fatal("a second End waits for ever")
		}
		if u := r.WantOneLog(); u.ID != pending.EntryID {
			t.Errorf("End reports %s, the log holds %s", pending.EntryID, u.ID)
		}
	})
}

func TestEndReportsDriverPanicInSoftTransaction(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]string{"write": "WHERE id = 1", "commit": "INSERT INTO bed_receipt"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db testdb.DB) {
				r := rig.New(t, db, func(c *bedsql.Config) { c.Guarantee = bedsql.ExactlyOnce })
				r.Account(1)
				c, pool := r.OpenPanicking()
				ctx, soft, err := bedsql.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				rig.WantPanic(t, func() {
					if name == "write" {
						c.PanicAt(at)
						_, _ = pool.ExecContext(ctx, rig.AddOne)
						return
					}
					conn, err := pool.Conn(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					defer func() { _ = conn.Close() }()
					// A panic in sql.Tx.Commit would leave the connection open.
					_ = conn.Raw(func(dc any) error {
						on := dc.(*bedsql.Conn)
						tx, err := on.BeginTx(ctx, driver.TxOptions{})
						if err == nil {
							_, err = on.ExecContext(ctx, rig.AddOne, nil)
						}
						if err != nil {
							t.Error(err)
							return err
						}
						c.PanicAt(at)
						return tx.Commit()
					})
				})
				pending := rig.WantPending(t, soft.End(t.Context()))
				if u := r.WantOneLog(); u.ID != pending.EntryID {
					t.Errorf("End reports %s, the log holds %s", pending.EntryID, u.ID)
				}
			})
		})
	}
}
