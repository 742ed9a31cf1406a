package keys

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestKeyedTransactionIsAnsweredAlikeWhoeverDelivered(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]rig.ConfigChange{
		"a retry": func(*bedsql.Config) {},
		"the job": rig.NoSyncRetry,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := rig.NewBehindProxy(t, db, change)
				r.ReceiptTable()
				r.Account(0)
				struck := p.CutBefore(testproxy.Text("commit"))
				if replayed, _ := r.Keyed("k"); replayed {
					t.Error("the first request counts as replayed")
				}
				<-struck
				r.Drain(r.Job())
				r.WantBalances(1)
				replayed, rows := r.Keyed("k")
				if !replayed || rows != 1 {
					t.Errorf("sent again: replayed %v, %d rows", replayed, rows)
				}
				r.WantBalances(1)
			})
		})
	}
}

func TestRequestThatSucceedsOnRetryIsAppliedOnce(t *testing.T) {
	t.Parallel()
	for name, failing := range map[string]func(ctx context.Context, r *rig.Rig){
		"a transaction that was rolled back": func(ctx context.Context, r *rig.Rig) {
			tx, err := r.Wrapped.BeginTx(ctx, nil)
			if err != nil {
				r.T.Fatal(err)
			}
			if _, err := tx.ExecContext(ctx, rig.AddOne); err != nil {
				r.T.Fatal(err)
			}
			if err := tx.Rollback(); err != nil {
				r.T.Fatal(err)
			}
		},
		"a write that was refused": func(ctx context.Context, r *rig.Rig) {
			if _, err := r.Wrapped.ExecContext(ctx, "INSERT INTO account VALUES (1, 0)"); err == nil || errors.Is(err, bedsql.ErrPending) {
				r.T.Fatal(err)
			}
		},
		"a transaction that could not begin": func(ctx context.Context, r *rig.Rig) {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			conn, err := r.Wrapped.Conn(context.Background())
			if err != nil {
				r.T.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if err := conn.Raw(func(dc any) error {
				_, err := dc.(driver.ConnBeginTx).BeginTx(ended, driver.TxOptions{})
				return err
			}); err == nil {
				r.T.Fatal("a transaction began under a context that had ended")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db testdb.DB) {
				r := rig.New(t, db)
				r.Wrapped.SetMaxOpenConns(1)
				r.Account(0)
				for i := range 2 {
					ctx, k := bedsql.WithIdempotencyKey(context.Background(), "k")
					if i == 0 {
						failing(ctx, r)
					}
					tx, err := r.Wrapped.BeginTx(ctx, nil)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := tx.ExecContext(ctx, rig.AddOne); err != nil {
						t.Fatal(err)
					}
					if err := tx.Commit(); err != nil {
						t.Fatal(err)
					}
					if _, err := r.Wrapped.ExecContext(bedsql.WithKeyPart(ctx, "two"), rig.AddOne); err != nil {
						t.Fatal(err)
					}
					if k.Replayed() != (i > 0) {
						t.Errorf("request %d: replayed is %v", i+1, k.Replayed())
					}
				}
				r.WantBalances(2)
			})
		})
	}
}

// elsewhere makes a place where unqualified names lead to other tables, including another table of
// receipts. It returns the statement that moves the session there, and the qualified name of the
// account table.
func elsewhere(r *rig.Rig) (leave, qualified string) {
	r.T.Helper()
	ddl, err := attempt.ReceiptSchema(r.DB.Driver)
	if err != nil {
		r.T.Fatal(err)
	}
	if r.DB.Driver == testdb.DriverMySQL {
		other := rig.FreshLike(r.T, r.DB)
		if _, err := other.Open(r.T).Exec(ddl); err != nil {
			r.T.Fatal(err)
		}
		return "USE " + other.Name, r.DB.Name + ".account"
	}
	r.Exec("CREATE SCHEMA tenant", strings.Replace(ddl, "bed_receipt (", "tenant.bed_receipt (", 1))
	return "SET LOCAL search_path = tenant", "public.account"
}

func TestTransactionThatLeftItsDatabaseFollowsItsReceipt(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, cut := range map[string]func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}{
			"its COMMIT was carried out": (*testproxy.Proxy).CutAfter,
			"its COMMIT did not arrive":  (*testproxy.Proxy).CutBefore,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db), rig.ExactlyOnce)
				committing := rig.CommitsOf(p)
				r.ReceiptTable()
				r.Account(0)
				leave, account := elsewhere(r)
				tx := r.Begin()
				r.Must(tx, leave)
				r.Must(tx, "UPDATE "+account+" SET balance = balance + 1 WHERE id = 1")
				struck := cut(p, committing.Match)
				err := tx.Commit()
				<-struck
				applied := r.Balance(1) == 1
				if refused := err != nil && !errors.Is(err, bedsql.ErrPending); refused == applied {
					t.Errorf("applied: %v; the caller got %v", applied, err)
				}
			})
		}
	})
}

func TestKeyedTransactionLeavingItsDatabaseIsAppliedOnce(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.ReceiptTable()
		r.Account(0)
		leave, account := elsewhere(r)
		for i := range 2 {
			ctx, k := bedsql.WithIdempotencyKey(context.Background(), "k")
			tx, err := r.Wrapped.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []string{leave, "UPDATE " + account + " SET balance = balance + 1 WHERE id = 1"} {
				if _, err := tx.ExecContext(ctx, s); err != nil {
					t.Fatal(err)
				}
			}
			if err := tx.Commit(); err != nil || k.Replayed() != (i > 0) {
				t.Errorf("request %d: %v, replayed is %v", i+1, err, k.Replayed())
			}
			r.Wrapped.SetMaxIdleConns(0) // the session stays elsewhere
		}
		r.WantBalances(1)
	})
}

// A purge has read which receipts are due when a worker meets one of them and
// removes its log. Another worker may still come.
func TestReceiptRenewedDuringAPurgeStays(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.ReceiptTable()
		r.Account(0)
		u := &entry.Unit{ID: entry.NewID(), DataSource: "x", Statements: []entry.Statement{{SQL: rig.AddOne}}}
		u.Receipt = u.ID
		replay := func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
			return attempt.Replay(context.Background(), d, conn, u, rig.ReceiptsOf(r))
		}
		if out := r.OnTarget(replay); out.Err != nil {
			t.Fatal(out.Err)
		}
		r.ReceiptsAge(time.Hour)
		r.RunOnce() // finds that its log is gone
		r.ReceiptsAge(attempt.DefaultRetention + time.Hour)
		r.OnTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
			missing := func(_ context.Context, ids []string) ([]string, error) {
				if out := r.OnTarget(replay); out.Err != nil || !out.Found {
					t.Errorf("the second attempt: %+v", out)
				}
				return ids, nil
			}
			if _, _, err := attempt.PurgeReceipts(context.Background(), d, conn, rig.ReceiptsOf(r), "", missing); err != nil {
				t.Error(err)
			}
			return attempt.Outcome{}
		})
		r.WantReceipts(1)
		if out := r.OnTarget(replay); !out.Found {
			t.Errorf("the third attempt: %+v", out)
		}
		r.WantBalances(1)
	})
}

func TestWriteThatCannotCarryItsReceiptIsRefused(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		if db.Driver == testdb.DriverMySQL {
			db.DSN = rig.WithSetting(db, "multiStatements=true")
		}
		r := rig.New(t, db)
		r.Account(0)
		ctx, _ := bedsql.WithIdempotencyKey(context.Background(), "k")
		if _, err := r.Wrapped.ExecContext(ctx, rig.AddOne+"; "+rig.AddOne); !errors.Is(err, bedsql.ErrKeyUnusable) {
			t.Errorf("several statements in one text: %v", err)
		}
		if db.Driver == testdb.DriverPostgres {
			tx, err := r.Wrapped.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.ExecContext(ctx, "PREPARE TRANSACTION 'x'"); !errors.Is(err, bedsql.ErrKeyUnusable) {
				t.Errorf("PREPARE TRANSACTION: %v", err)
			}
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
		}
		r.WantBalances(0)
	})
}

func TestReadOnlyTransactionNeedsNoReceipt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.ReceiptTable()
		r.Account(7)
		ctx, _ := bedsql.WithIdempotencyKey(context.Background(), "k")
		tx, err := r.Wrapped.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT balance FROM account").Scan(&n); err != nil || n != 7 {
			t.Error(n, err)
		}
		if _, err := tx.ExecContext(context.Background(), rig.AddOne); err == nil {
			t.Error("it wrote")
		}
		if err := tx.Commit(); err != nil && !strings.Contains(err.Error(), "rollback") {
			t.Error(err)
		}
		r.WantReceipts(0)
		r.WantBalances(7)
	})
}

func TestStagedALocalTransactionInsideAnotherIsRefused(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.SQLite(t))
	r.Account(0)
	ctx, soft, err := bedsql.Begin(context.Background(), bedsql.Staged())
	if err != nil {
		t.Fatal(err)
	}
	defer soft.Discard()
	conn := r.Conn()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if inner, err := conn.BeginTx(ctx, nil); !errors.Is(err, bedsql.ErrStaged) {
		t.Errorf("the second BeginTx on one connection: %v", err)
		_ = inner.Rollback()
	}
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
}

// An application that writes to a SQLite file by one connection never finds it
// locked: nor by the erasing of receipts.
func TestSQLiteErasesReceiptsOnTheApplicationsConnection(t *testing.T) {
	t.Parallel()
	for name, memory := range map[string]bool{"a file": false, "a database in memory": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, testdb.SQLite(t), rig.ExactlyOnce)
			dsn := r.DB.DSN
			if memory {
				dsn = ":memory:"
			}
			tgt, err := rig.Target(r.DB.Driver)(dsn)
			if err != nil {
				t.Fatal(err)
			}
			c := &rig.Panicking{Connector: tgt.Connector}
			tgt.Connector = c
			pool := r.OpenTarget(tgt)
			pool.SetMaxOpenConns(1)
			r.Must(pool, "CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)")
			r.Must(pool, "INSERT INTO account VALUES (1, 0)")
			writes := 0
			rig.Eventually(t, "receipts are erased while it writes", func() bool {
				r.Must(pool, rig.AddOne)
				tx, err := pool.Begin()
				if err != nil {
					t.Fatal(err)
				}
				r.Must(tx, rig.AddOne)
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				writes += 2
				var left int
				if err := pool.QueryRow("SELECT COUNT(*) FROM bed_receipt").Scan(&left); err != nil {
					t.Fatal(err)
				}
				return left < writes/2
			})
			if n := c.Dials.Load(); n != 1 {
				t.Errorf("%d connections were dialled, want the application's one", n)
			}
		})
	}
}
