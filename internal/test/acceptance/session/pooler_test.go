package session

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// Behind a pooler in transaction mode, each transaction may run in another session of the server.
// There, a name given by one connection may be taken or unknown.
func TestPoolerKeepsEveryWriteIntact(t *testing.T) {
	t.Parallel()
	const writers, rounds = 12, 12
	for name, settings := range rig.Poolers(t) {
		for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
			for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
				t.Run(fmt.Sprint(name, " ", mode, " ", guarantee), func(t *testing.T) {
					t.Parallel()
					direct := testdb.Postgres(t)
					db := rig.WithParam(testdb.PgBouncer(t, direct, append([]string{"default_pool_size=3"}, settings...)...), "default_query_exec_mode", mode)
					logDB := rig.WithParam(testdb.PgBouncer(t, testdb.Postgres(t), append([]string{"default_pool_size=3"}, settings...)...), "default_query_exec_mode", mode)
					r := rig.NewWithLog(t, db, logDB, func(c *bedsql.Config) { c.Guarantee = guarantee })
					r.Bare = direct.Open(t)
					r.Exec("CREATE TABLE told (id INT PRIMARY KEY, n INT NOT NULL DEFAULT 0, note TEXT, doc JSONB)")
					r.Wrapped.SetMaxOpenConns(writers)
					var wg sync.WaitGroup
					for w := range writers {
						wg.Go(func() {
							for i := range rounds {
								if err := tell(t.Context(), r, w*rounds+i); err != nil {
									t.Errorf("row %d: %v", w*rounds+i, err)
								}
							}
						})
					}
					wg.Wait()
					if n := r.Count("SELECT COUNT(*) FROM told WHERE n = id AND note = 'row ' || id AND doc = jsonb_build_object('id', id)"); n != writers*rounds {
						t.Errorf("%d rows are as told, want %d", n, writers*rounds)
					}
					if n := r.Count("SELECT COUNT(*) FROM told"); n != writers*rounds {
						t.Errorf("%d rows, want %d", n, writers*rounds)
					}
					r.WantNoLog()
				})
			}
		}
	}
}

// tell makes row id in one of several ways, each a text of its own.
func tell(ctx context.Context, r *rig.Rig, id int) error {
	own := fmt.Sprintf("/* %d */ ", id%7)
	note, doc := fmt.Sprintf("row %d", id), fmt.Sprintf(`{"id": %d}`, id)
	insert, update := own+"INSERT INTO told (id, note) VALUES ($1, $2)", own+"UPDATE told SET n = $1, doc = $2 WHERE id = $3"
	switch id % 4 {
	case 0: // by themselves
		if _, err := r.Wrapped.ExecContext(ctx, insert, id, note); err != nil {
			return err
		}
		_, err := r.Wrapped.ExecContext(ctx, update, id, doc, id)
		return err
	case 1: // prepared
		for _, call := range []struct {
			text string
			args []any
		}{{insert, []any{id, note}}, {update, []any{id, doc, id}}} {
			stmt, err := r.Wrapped.PrepareContext(ctx, call.text)
			if err != nil {
				return err
			}
			_, err = stmt.ExecContext(ctx, call.args...)
			_ = stmt.Close()
			if err != nil {
				return err
			}
		}
		return nil
	case 2: // a local transaction
		tx, err := r.Wrapped.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.ExecContext(ctx, insert, id, note); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, update, id, doc, id); err != nil {
			return err
		}
		return tx.Commit()
	default: // staged
		soft, st, err := bedsql.Begin(ctx, bedsql.Staged())
		if err != nil {
			return err
		}
		if _, err := r.Wrapped.ExecContext(soft, insert, id, note); err != nil {
			return err
		}
		if _, err := r.Wrapped.ExecContext(soft, update, id, doc, id); err != nil {
			return err
		}
		return st.End(ctx)
	}
}

func TestJobDeliversIntactThroughAPooler(t *testing.T) {
	t.Parallel()
	for name, settings := range rig.Poolers(t) {
		for _, mode := range []string{"cache_statement", "describe_exec", "exec", "simple_protocol"} {
			t.Run(name+" "+mode, func(t *testing.T) {
				t.Parallel()
				direct := testdb.Postgres(t)
				db := rig.WithParam(testdb.PgBouncer(t, direct, settings...), "default_query_exec_mode", mode)
				logDB := rig.WithParam(testdb.PgBouncer(t, testdb.Postgres(t), settings...), "default_query_exec_mode", mode)
				r := rig.NewWithLog(t, db, logDB, rig.NoSyncRetry, func(c *bedsql.Config) { c.Guarantee = bedsql.ExactlyOnce })
				r.Bare = direct.Open(t)
				const rows = 40
				// There is no table to write to yet, because that account's connections are
				// exhausted.
				r.Exec("CREATE TABLE told (id INT PRIMARY KEY, note TEXT)", "BEGIN; LOCK TABLE told; COMMIT")
				gate, err := r.Bare.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := gate.Exec("LOCK TABLE told"); err != nil {
					t.Fatal(err)
				}
				r.Exec("ALTER DATABASE " + direct.Name + " SET lock_timeout = '500ms'")
				const texts = 5
				var all sync.WaitGroup
				var errs [rows]error
				for n := range texts {
					all.Go(func() {
						for i := n; i < rows; i += texts {
							_, errs[i] = r.Wrapped.Exec(fmt.Sprintf("/* %d */ INSERT INTO told VALUES ($1, $2)", n), i, fmt.Sprint("row ", i))
						}
					})
				}
				all.Wait()
				for _, err := range errs {
					rig.WantPending(t, err)
				}
				if err := gate.Commit(); err != nil {
					t.Fatal(err)
				}
				report := r.RunOnce(func(c *asyncjob.Config) { c.Concurrency = 8 })
				if report.Delivered != rows {
					t.Errorf("the job: %s", report)
				}
				if n := r.Count("SELECT COUNT(*) FROM told WHERE note = 'row ' || id"); n != rows {
					t.Errorf("%d rows are as told, want %d", n, rows)
				}
				r.WantNoLog()
			})
		}
	}
}
