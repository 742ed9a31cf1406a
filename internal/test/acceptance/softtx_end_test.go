package acceptance

import (
	"context"
	"database/sql/driver"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// If the log's answer for a write is lost, there may be no entry, so the caller must learn that
// before End, in case it dies.
func TestSoftTransactionReturnsUnknownLogWriteAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, write := range map[string]func(*rig, context.Context) error{
			"Exec": func(r *rig, ctx context.Context) error {
				_, err := r.wrapped.ExecContext(ctx, addOne)
				return err
			},
			"Commit": func(r *rig, ctx context.Context) error {
				tx, err := r.wrapped.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.must(tx, addOne)
				return tx.Commit()
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, freshLike(t, db), func(c *bedsql.Config) {
					c.Storage = &hookedStorage{Storage: c.Storage, onAdd: func([]*txlog.Unit) error { return txlog.ErrInDoubt }}
				})
				r.account(1)
				ctx, tx := soft(t)
				err := write(r, ctx)
				if !errors.Is(err, bedsql.ErrUnknownOutcome) || !errors.Is(err, txlog.ErrInDoubt) || bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
					t.Errorf("%v, want it unknown and to unwrap to ErrInDoubt", err)
				}
				if end := tx.End(t.Context()); !errors.Is(end, txlog.ErrInDoubt) {
					t.Errorf("End: %v, want it to report the write too", end)
				}
				r.wantBalances(1)
			})
		}
	})
}

func TestEndGivesEachRefusalAndEachPendingWrite(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, noSyncRetry)
		r.account(1)
		duplicate, unknown := "INSERT INTO account VALUES (1, 5)", "UPDATE account SET nothing = 1"
		impatient := r.open(impatient(db).DSN)
		ctx, tx := soft(t)
		for _, text := range []string{duplicate, unknown} {
			if _, err := r.wrapped.ExecContext(ctx, text); err != nil {
				t.Fatal(err)
			}
		}
		free := r.blockRow(1)
		if _, err := impatient.ExecContext(ctx, addOne); err != nil {
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
				_, want := r.bare.Exec(text)
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
		rigs := newRigs(t, db)
		ctx, tx := staged(t)
		for _, r := range rigs {
			r.stage(ctx, r.wrapped, "UPDATE account SET nothing = 1")
		}
		var end *bedsql.EndError
		if err := tx.End(t.Context()); !errors.As(err, &end) || len(end.Refused()) != len(rigs) || len(end.Errors) != len(rigs) {
			t.Fatalf("%v, want %d refusals", err, len(rigs))
		}
		for _, r := range rigs {
			if !slices.ContainsFunc(end.Refused(), func(e *bedsql.RefusedError) bool { return e.DataSource == dataSourceOf(t, r.db) }) {
				t.Errorf("the refusal of %s is missing", r.db.Driver)
			}
		}
	})
}

func TestDriverPanicLeavesStagedEndEnded(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(1)
		c, pool := r.openPanicking()
		ctx, tx := staged(t)
		if _, err := pool.ExecContext(ctx, addOne); err != nil {
			t.Fatal(err)
		}
		c.panicAt("WHERE id = 1")
		wantPanic(t, func() { _ = tx.End(t.Context()) })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		pending := wantPending(t, tx.End(ctx))
		if ctx.Err() != nil {
			t.Fatal("a second End waits for ever")
		}
		if u := r.wantOneLog(); u.ID != pending.EntryID {
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
				r := newRig(t, db, func(c *bedsql.Config) { c.Guarantee = bedsql.ExactlyOnce })
				r.account(1)
				c, pool := r.openPanicking()
				ctx, soft, err := bedsql.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				wantPanic(t, func() {
					if name == "write" {
						c.panicAt(at)
						_, _ = pool.ExecContext(ctx, addOne)
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
							_, err = on.ExecContext(ctx, addOne, nil)
						}
						if err != nil {
							t.Error(err)
							return err
						}
						c.panicAt(at)
						return tx.Commit()
					})
				})
				pending := wantPending(t, soft.End(t.Context()))
				if u := r.wantOneLog(); u.ID != pending.EntryID {
					t.Errorf("End reports %s, the log holds %s", pending.EntryID, u.ID)
				}
			})
		})
	}
}
