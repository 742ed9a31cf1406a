package acceptance

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
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// keyed sends a local transaction of one increment under an idempotency key.
func (r *rig) keyed(key string) (replayed bool, rows int64) {
	r.t.Helper()
	ctx, k := bedsql.WithIdempotencyKey(context.Background(), key)
	tx, err := r.wrapped.BeginTx(ctx, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	res, err := tx.ExecContext(ctx, addOne)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := tx.Commit(); err != nil && !errors.Is(err, bedsql.ErrPending) {
		r.t.Fatal(err)
	}
	rows, _ = res.RowsAffected()
	return k.Replayed(), rows
}

func TestKeyedTransactionIsAnsweredAlikeWhoeverDelivered(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]configChange{
		"a retry": func(*bedsql.Config) {},
		"the job": noSyncRetry,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := newRigBehindProxy(t, db, change)
				r.receiptTable()
				r.account(0)
				struck := p.CutBefore(testproxy.Text("commit"))
				if replayed, _ := r.keyed("k"); replayed {
					t.Error("the first request counts as replayed")
				}
				<-struck
				r.drain(r.job())
				r.wantBalances(1)
				replayed, rows := r.keyed("k")
				if !replayed || rows != 1 {
					t.Errorf("sent again: replayed %v, %d rows", replayed, rows)
				}
				r.wantBalances(1)
			})
		})
	}
}

func TestRequestThatSucceedsOnRetryIsAppliedOnce(t *testing.T) {
	t.Parallel()
	for name, failing := range map[string]func(ctx context.Context, r *rig){
		"a transaction that was rolled back": func(ctx context.Context, r *rig) {
			tx, err := r.wrapped.BeginTx(ctx, nil)
			if err != nil {
				r.t.Fatal(err)
			}
			if _, err := tx.ExecContext(ctx, addOne); err != nil {
				r.t.Fatal(err)
			}
			if err := tx.Rollback(); err != nil {
				r.t.Fatal(err)
			}
		},
		"a write that was refused": func(ctx context.Context, r *rig) {
			if _, err := r.wrapped.ExecContext(ctx, "INSERT INTO account VALUES (1, 0)"); err == nil || errors.Is(err, bedsql.ErrPending) {
				r.t.Fatal(err)
			}
		},
		"a transaction that could not begin": func(ctx context.Context, r *rig) {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			conn, err := r.wrapped.Conn(context.Background())
			if err != nil {
				r.t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if err := conn.Raw(func(dc any) error {
				_, err := dc.(driver.ConnBeginTx).BeginTx(ended, driver.TxOptions{})
				return err
			}); err == nil {
				r.t.Fatal("a transaction began under a context that had ended")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db testdb.DB) {
				r := newRig(t, db)
				r.wrapped.SetMaxOpenConns(1)
				r.account(0)
				for i := range 2 {
					ctx, k := bedsql.WithIdempotencyKey(context.Background(), "k")
					if i == 0 {
						failing(ctx, r)
					}
					tx, err := r.wrapped.BeginTx(ctx, nil)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := tx.ExecContext(ctx, addOne); err != nil {
						t.Fatal(err)
					}
					if err := tx.Commit(); err != nil {
						t.Fatal(err)
					}
					if _, err := r.wrapped.ExecContext(bedsql.WithKeyPart(ctx, "two"), addOne); err != nil {
						t.Fatal(err)
					}
					if k.Replayed() != (i > 0) {
						t.Errorf("request %d: replayed is %v", i+1, k.Replayed())
					}
				}
				r.wantBalances(2)
			})
		})
	}
}

// elsewhere makes a place where unqualified names lead to other tables, including another table of
// receipts. It returns the statement that moves the session there, and the qualified name of the
// account table.
func (r *rig) elsewhere() (leave, qualified string) {
	r.t.Helper()
	ddl, err := attempt.ReceiptSchema(r.db.Driver)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.db.Driver == testdb.DriverMySQL {
		other := freshLike(r.t, r.db)
		if _, err := other.Open(r.t).Exec(ddl); err != nil {
			r.t.Fatal(err)
		}
		return "USE " + other.Name, r.db.Name + ".account"
	}
	r.exec("CREATE SCHEMA tenant", strings.Replace(ddl, "bed_receipt (", "tenant.bed_receipt (", 1))
	return "SET LOCAL search_path = tenant", "public.account"
}

func TestTransactionThatLeftItsDatabaseFollowsItsReceipt(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, cut := range map[string]func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}{
			"its COMMIT was carried out": (*testproxy.Proxy).CutAfter,
			"its COMMIT did not arrive":  (*testproxy.Proxy).CutBefore,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r, p := newRigBehindProxy(t, freshLike(t, db), exactlyOnce)
				committing := commitsOf(p)
				r.receiptTable()
				r.account(0)
				leave, account := r.elsewhere()
				tx := r.begin()
				r.must(tx, leave)
				r.must(tx, "UPDATE "+account+" SET balance = balance + 1 WHERE id = 1")
				struck := cut(p, committing.match)
				err := tx.Commit()
				<-struck
				applied := r.balance(1) == 1
				if refused := err != nil && !errors.Is(err, bedsql.ErrPending); refused == applied {
					t.Errorf("applied: %v; the caller got %v", applied, err)
				}
			})
		}
	})
}

func TestKeyedTransactionLeavingItsDatabaseIsAppliedOnce(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.receiptTable()
		r.account(0)
		leave, account := r.elsewhere()
		for i := range 2 {
			ctx, k := bedsql.WithIdempotencyKey(context.Background(), "k")
			tx, err := r.wrapped.BeginTx(ctx, nil)
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
			r.wrapped.SetMaxIdleConns(0) // the session stays elsewhere
		}
		r.wantBalances(1)
	})
}

// A purge has read which receipts are due when a worker meets one of them and
// removes its log. Another worker may still come.
func TestReceiptRenewedDuringAPurgeStays(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.receiptTable()
		r.account(0)
		u := &txlog.Unit{ID: txlog.NewID(), DataSource: "x", Statements: []txlog.Statement{{SQL: addOne}}}
		u.Receipt = u.ID
		replay := func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
			return attempt.Replay(context.Background(), d, conn, u, receiptsOf(r))
		}
		if out := r.onTarget(replay); out.Err != nil {
			t.Fatal(out.Err)
		}
		r.receiptsAge(time.Hour)
		r.runOnce() // finds that its log is gone
		r.receiptsAge(attempt.DefaultRetention + time.Hour)
		r.onTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
			missing := func(_ context.Context, ids []string) ([]string, error) {
				if out := r.onTarget(replay); out.Err != nil || !out.Found {
					t.Errorf("the second attempt: %+v", out)
				}
				return ids, nil
			}
			if _, _, err := attempt.PurgeReceipts(context.Background(), d, conn, receiptsOf(r), "", missing); err != nil {
				t.Error(err)
			}
			return attempt.Outcome{}
		})
		r.wantReceipts(1)
		if out := r.onTarget(replay); !out.Found {
			t.Errorf("the third attempt: %+v", out)
		}
		r.wantBalances(1)
	})
}

func TestWriteThatCannotCarryItsReceiptIsRefused(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		if db.Driver == testdb.DriverMySQL {
			db.DSN = withSetting(db, "multiStatements=true")
		}
		r := newRig(t, db)
		r.account(0)
		ctx, _ := bedsql.WithIdempotencyKey(context.Background(), "k")
		if _, err := r.wrapped.ExecContext(ctx, addOne+"; "+addOne); !errors.Is(err, bedsql.ErrKeyUnusable) {
			t.Errorf("several statements in one text: %v", err)
		}
		if db.Driver == testdb.DriverPostgres {
			tx, err := r.wrapped.BeginTx(ctx, nil)
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
		r.wantBalances(0)
	})
}

func TestReadOnlyTransactionNeedsNoReceipt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.receiptTable()
		r.account(7)
		ctx, _ := bedsql.WithIdempotencyKey(context.Background(), "k")
		tx, err := r.wrapped.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT balance FROM account").Scan(&n); err != nil || n != 7 {
			t.Error(n, err)
		}
		if _, err := tx.ExecContext(context.Background(), addOne); err == nil {
			t.Error("it wrote")
		}
		if err := tx.Commit(); err != nil && !strings.Contains(err.Error(), "rollback") {
			t.Error(err)
		}
		r.wantReceipts(0)
		r.wantBalances(7)
	})
}

func TestStagedALocalTransactionInsideAnotherIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.SQLite(t))
	r.account(0)
	ctx, soft, err := bedsql.Begin(context.Background(), bedsql.Staged())
	if err != nil {
		t.Fatal(err)
	}
	defer soft.Discard()
	conn := r.conn()
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
			r := newRig(t, testdb.SQLite(t), exactlyOnce)
			dsn := r.db.DSN
			if memory {
				dsn = ":memory:"
			}
			tgt, err := target(r.db.Driver)(dsn)
			if err != nil {
				t.Fatal(err)
			}
			c := &panicking{Connector: tgt.Connector}
			tgt.Connector = c
			pool := r.openTarget(tgt)
			pool.SetMaxOpenConns(1)
			r.must(pool, "CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)")
			r.must(pool, "INSERT INTO account VALUES (1, 0)")
			writes := 0
			eventually(t, "receipts are erased while it writes", func() bool {
				r.must(pool, addOne)
				tx, err := pool.Begin()
				if err != nil {
					t.Fatal(err)
				}
				r.must(tx, addOne)
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
			if n := c.dials.Load(); n != 1 {
				t.Errorf("%d connections were dialled, want the application's one", n)
			}
		})
	}
}
