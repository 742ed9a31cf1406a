package attempt_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/listener/delivery"
)

const patience = 20 * time.Second

// undoRig is a database with an account of 100, and a group with a single part that adds 10.
type undoRig struct {
	db     testdb.DB
	pool   *sql.DB
	target delivery.Target
	kept   attempt.Receipts
	// forward is the part, undo undoes it.
	forward, undo *entry.Unit
}

func newUndoRig(t *testing.T, db testdb.DB) *undoRig {
	t.Helper()
	r := &undoRig{db: db, pool: db.Open(t), kept: attempt.Receipts{LogIdentity: "log", Retention: time.Hour}}
	r.target = r.via(t, db)
	r.exec(t, "CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)")
	r.exec(t, "INSERT INTO account VALUES (1, 100)")
	conn := r.conn(t)
	if err := attempt.EnsureReceipts(t.Context(), r.target.Dialect, conn, r.kept); err != nil {
		t.Fatal(err)
	}
	group := entry.NewID()
	id := entry.NewID()
	r.forward = &entry.Unit{ID: id, TransactionID: group, DataSource: "bank", Receipt: attempt.ReceiptID(r.target.Dialect, id),
		Statements: []entry.Statement{{SQL: "UPDATE account SET balance = balance + 10 WHERE id = 1", Part: 1}}}
	k := &entry.Unit{ID: group, TransactionID: group, DataSource: "bank", Receipt: group,
		Statements: []entry.Statement{{SQL: "UPDATE account SET balance = balance - 10 WHERE id = 1 AND balance >= 100", Required: entry.Exactly(1), Part: 1}},
		Undo:       &entry.Undo{Parts: []entry.Part{{Unit: id, Receipt: r.forward.Receipt, DataSource: "bank"}}}}
	r.undo = k.Part(0)
	return r
}

func (r *undoRig) via(t *testing.T, db testdb.DB) delivery.Target {
	t.Helper()
	read := testdb.By[func(string) (delivery.Target, error)]{MySQL: mysql.Target, Postgres: postgres.Target, SQLite: sqlite.Target}.For(db.Driver)
	target, err := read(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func (r *undoRig) exec(t *testing.T, query string) {
	t.Helper()
	if _, err := r.pool.ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}

func (r *undoRig) conn(t *testing.T) driver.Conn { return dial(t, r.target) }

func dial(t *testing.T, target delivery.Target) driver.Conn {
	t.Helper()
	conn, err := target.Connector.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (r *undoRig) replay(ctx context.Context, conn driver.Conn) attempt.Outcome {
	return attempt.Replay(ctx, r.target.Dialect, conn, r.forward, r.kept)
}

func (r *undoRig) undoOn(ctx context.Context, conn driver.Conn) attempt.Outcome {
	return attempt.Undo(ctx, r.target.Dialect, conn, r.undo, r.kept)
}

// want checks the balance, and whether the receipt is void and the group's.
func (r *undoRig) want(t *testing.T, balance, void int) {
	t.Helper()
	var b, v int
	var unit string
	if err := errors.Join(r.pool.QueryRowContext(t.Context(), "SELECT balance FROM account").Scan(&b),
		r.pool.QueryRowContext(t.Context(), "SELECT void, unit_id FROM bed_receipt").Scan(&v, &unit)); err != nil {
		t.Fatal(err)
	}
	if b != balance || v != void || unit != r.forward.TransactionID {
		t.Errorf("the balance is %d, want %d; void is %d, want %d, for %s, want %s", b, balance, v, void, unit, r.forward.TransactionID)
	}
}

// onServers runs f on servers, because only there answers can be lost and locks awaited.
func onServers(t *testing.T, f func(t *testing.T, db testdb.DB)) {
	for name, fresh := range map[string]func(testing.TB) testdb.DB{"mysql": testdb.MySQL, "postgres": testdb.Postgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, fresh(t))
		})
	}
}

func TestUndoneOnceWhatWasApplied(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newUndoRig(t, db)
		conn := r.conn(t)
		if out := r.replay(t.Context(), conn); !out.Delivered() {
			t.Fatalf("%+v", out)
		}
		r.want(t, 110, 0)
		if out := r.undoOn(t.Context(), conn); !out.Delivered() || out.Voided || out.Result == nil {
			t.Errorf("%+v", out)
		}
		r.want(t, 100, 1)
		if out := r.undoOn(t.Context(), conn); !out.Delivered() || !out.Voided {
			t.Errorf("once more: %+v", out)
		}
		if out := r.replay(t.Context(), conn); !out.Voided || !errors.Is(out.Err, dialect.ErrVoided) {
			t.Errorf("done again: %+v", out)
		}
		r.want(t, 100, 1)
	})
}

func TestEmptyCompensation(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newUndoRig(t, db)
		conn := r.conn(t)
		if out := r.undoOn(t.Context(), conn); !out.Delivered() || !out.Voided {
			t.Errorf("%+v", out)
		}
		r.want(t, 100, 1)
		if out := r.replay(t.Context(), conn); !out.Voided {
			t.Errorf("done after it was undone: %+v", out)
		}
		r.want(t, 100, 1)
	})
}

// The packet of a forward attempt is held until its group is undone, and arrives then.
func TestHangingForwardAttemptMeetsTheVoid(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, db testdb.DB) {
		r := newUndoRig(t, db)
		proxy := testproxy.New(t, db.Addr())
		late := dial(t, r.via(t, db.Via(proxy.Addr())))
		reached, release := proxy.HoldRun("INSERT INTO bed_receipt")
		ended := make(chan attempt.Outcome, 1)
		go func() { ended <- r.replay(context.Background(), late) }()
		<-reached
		if out := r.undoOn(t.Context(), r.conn(t)); !out.Delivered() || !out.Voided {
			t.Errorf("%+v", out)
		}
		release()
		if out := <-ended; !out.Voided {
			t.Errorf("the late attempt: %+v", out)
		}
		r.want(t, 100, 1)
	})
}

func TestDoubledCompensationIsAppliedOnce(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, db testdb.DB) {
		for _, cut := range []func(*testproxy.Proxy) <-chan struct{}{
			func(p *testproxy.Proxy) <-chan struct{} { return p.CutAfter(testproxy.Commit) },
			func(p *testproxy.Proxy) <-chan struct{} { return p.CutBefore(testproxy.Commit) },
		} {
			r := newUndoRig(t, db)
			if out := r.replay(t.Context(), r.conn(t)); !out.Delivered() {
				t.Fatalf("%+v", out)
			}
			proxy := testproxy.New(t, db.Addr())
			conn := dial(t, r.via(t, db.Via(proxy.Addr())))
			struck := cut(proxy)
			out := r.undoOn(t.Context(), conn)
			<-struck
			if out.Class != dialect.Unknown || !out.ConnLost {
				t.Errorf("an answer was lost: %+v", out)
			}
			eventually(t, func() bool { return r.undoOn(t.Context(), r.conn(t)).Delivered() })
			r.want(t, 100, 1)
			r.exec(t, "DROP TABLE account")
			r.exec(t, "DROP TABLE bed_receipt")
		}
	})
}

func TestThreeSessionsUndoAtRepeatableRead(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newUndoRig(t, db)
		if out := r.replay(t.Context(), r.conn(t)); !out.Delivered() {
			t.Fatalf("%+v", out)
		}
		var ran int
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 3 {
			conn := r.conn(t)
			if level := (testdb.By[string]{MySQL: "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
				Postgres: "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ", SQLite: ""}).For(db.Driver); level != "" {
				if _, _, err := attempt.Exec(t.Context(), conn, level, nil); err != nil {
					t.Fatal(err)
				}
			}
			all.Go(func() {
				for end := time.Now().Add(patience); time.Now().Before(end); {
					out := r.undoOn(t.Context(), conn)
					if !out.Delivered() && !out.OnReceipt {
						t.Errorf("%+v", out)
						return
					}
					if out.Delivered() {
						mu.Lock()
						defer mu.Unlock()
						if !out.Voided {
							ran++
						}
						return
					}
				}
				t.Error("it did not end")
			})
		}
		all.Wait()
		if ran != 1 {
			t.Errorf("it was run %d times", ran)
		}
		r.want(t, 100, 1)
	})
}

func TestUndoWaitsForTheAttemptInFlight(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, db testdb.DB) {
		r := newUndoRig(t, db)
		tx, err := r.pool.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES ('"+
			r.forward.Receipt+"', '"+r.forward.TransactionID+"', 'log', 0, 0, 0)"); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(t.Context(), r.forward.Statements[0].SQL); err != nil {
			t.Fatal(err)
		}
		ended := make(chan attempt.Outcome, 1)
		undo := func(ctx context.Context) {
			conn := r.conn(t)
			go func() { ended <- r.undoOn(ctx, conn) }()
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		undo(ctx)
		waiting := testdb.By[string]{MySQL: "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND command <> 'Prepare' AND info LIKE 'INSERT INTO bed_receipt%'",
			Postgres: "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'", SQLite: ""}.For(db.Driver)
		eventually(t, func() bool {
			var n int
			if err := r.pool.QueryRowContext(t.Context(), waiting).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n > 0 || len(ended) > 0
		})
		cancel()
		if out := <-ended; out.Delivered() || !out.OnReceipt {
			t.Errorf("it did not wait: %+v", out)
		}
		undo(context.Background())
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if out := <-ended; !out.Delivered() || out.Voided {
			t.Errorf("%+v", out)
		}
		r.want(t, 100, 1)
	})
}

// The receipts are in another schema, or reachable only by their place.
func TestUndoGoesByReceiptsThatAreElsewhere(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, db testdb.DB) {
		r := newUndoRig(t, db)
		schema := "bed_undo_" + strings.ReplaceAll(entry.NewID(), "-", "_")
		t.Cleanup(func() {
			drop := testdb.By[string]{MySQL: "DROP SCHEMA " + schema, Postgres: "DROP SCHEMA " + schema + " CASCADE", SQLite: ""}.For(db.Driver)
			if _, err := r.pool.ExecContext(context.Background(), drop); err != nil {
				t.Error(err)
			}
		})
		r.kept.Schema = schema
		conn := r.conn(t)
		if err := attempt.EnsureReceipts(t.Context(), r.target.Dialect, conn, r.kept); err != nil {
			t.Fatal(err)
		}
		if out := r.replay(t.Context(), conn); !out.Delivered() {
			t.Fatalf("%+v", out)
		}
		place, err := attempt.ReceiptPlace(t.Context(), r.target.Dialect, conn, r.kept)
		if err != nil {
			t.Fatal(err)
		}
		r.kept = r.kept.At(place)
		if out := r.undoOn(t.Context(), conn); !out.Delivered() || out.Voided {
			t.Errorf("%+v", out)
		}
		if out := r.undoOn(t.Context(), conn); !out.Delivered() || !out.Voided {
			t.Errorf("once more: %+v", out)
		}
		var balance, void, here int
		if err := errors.Join(r.pool.QueryRowContext(t.Context(), "SELECT balance FROM account").Scan(&balance),
			r.pool.QueryRowContext(t.Context(), "SELECT void FROM "+schema+".bed_receipt").Scan(&void),
			r.pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM bed_receipt").Scan(&here)); err != nil || balance != 100 || void != 1 || here != 0 {
			t.Errorf("the balance is %d, void is %d, %d receipts are where none belongs (%v)", balance, void, here, err)
		}
	})
}

func TestWhatIsNotUndoneCanBeUndoneLater(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newUndoRig(t, db)
		conn := r.conn(t)
		if out := r.replay(t.Context(), conn); !out.Delivered() {
			t.Fatalf("%+v", out)
		}
		r.exec(t, "UPDATE account SET balance = 50")
		if out := r.undoOn(t.Context(), conn); out.Class != dialect.Refused || out.ConnLost {
			t.Errorf("%+v", out)
		}
		r.want(t, 50, 0)
		r.exec(t, "UPDATE account SET balance = 150")
		if out := r.undoOn(t.Context(), conn); !out.Delivered() || out.Voided {
			t.Errorf("%+v", out)
		}
		r.want(t, 140, 1)
	})
}

func eventually(t *testing.T, reached func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !reached(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not come to pass")
		}
	}
}
