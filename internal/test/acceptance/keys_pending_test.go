package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

func TestKeyOneCallerAppliesAndOthersReplay(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		const callers = 16
		r := newRig(t, db)
		r.account(0)
		r.receiptTable()
		pools := []*sql.DB{r.wrapped, r.open(db.DSN)} // as of two processes
		race := func(name string, send func(ctx context.Context, pool *sql.DB) error) {
			t.Helper()
			var (
				all      sync.WaitGroup
				replayed atomic.Int64
			)
			for i := range callers {
				all.Go(func() {
					ctx, k := keyed(name)
					if err := send(ctx, pools[i%len(pools)]); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					if k.Replayed() {
						replayed.Add(1)
					}
				})
			}
			all.Wait()
			if n := replayed.Load(); n != callers-1 {
				t.Errorf("%s: %d of %d were answered again, want all but one", name, n, callers)
			}
		}
		single := func(ctx context.Context, pool *sql.DB) error {
			res, err := pool.ExecContext(ctx, r.q(increment), 1, 1)
			if err == nil {
				wantRows(t, res, 1)
			}
			return err
		}
		transaction := func(ctx context.Context, pool *sql.DB) error {
			tx, err := pool.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			_, err = tx.ExecContext(ctx, r.q(increment), 1, 1)
			return errors.Join(err, tx.Commit())
		}
		race("single", single)
		r.wantBalances(1)
		race("transaction", transaction)
		r.wantBalances(2)
		// The first holds the key for a while, and then rolls back.
		for _, send := range []struct {
			name string
			send func(ctx context.Context, pool *sql.DB) error
		}{{"single after a rollback", single}, {"transaction after a rollback", transaction}} {
			_, tx, _ := r.beginUnder(send.name)
			r.must(tx, increment, 100, 1)
			done := make(chan struct{})
			go func() {
				defer close(done)
				race(send.name, send.send)
			}()
			eventually(t, "others wait for it", func() bool { return r.waitingOrBusy() >= 2 })
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
			<-done
		}
		r.wantBalances(4)
		r.wantNoLog()
	})
}

// waitingOrBusy is waiting; for a SQLite file, which has no sessions to list, it counts the
// connections in use.
func (r *rig) waitingOrBusy() int {
	r.t.Helper()
	if r.db.Driver == testdb.DriverSQLite {
		return r.wrapped.Stats().InUse
	}
	return r.waiting()
}

func TestKeyNextCallerAppliesAPendingWrite(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, impatient(db), noSyncRetry)
		r.account(100)
		r.receiptTable()
		free := r.blockRow(1)
		_, _, err := r.sendUnder("k", increment, 1, 1)
		first := wantPending(t, err)
		free()
		res, replayed := r.mustSendUnder("k", increment, 1, 1)
		wantReplayed(t, replayed, false)
		wantRows(t, res, 1)
		r.wantBalances(101)
		if u := r.wantLeft(1); u.ID != first.EntryID {
			t.Errorf("the log holds %s, want the first one's, %s", u.ID, first.EntryID)
		}
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job's round: %v", report)
		}
		r.wantBalances(101)
		r.wantNoLog()
		r.wantReceipts(1)
	})
}

func TestKeyPendingWriteReturnsTheJobsResult(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, impatient(db), noSyncRetry)
		r.account(100, 100)
		r.receiptTable()
		free := r.blockRow(1)
		_, _, err := r.sendUnder("single", increment+" OR id = ?", 1, 1, 2)
		wantPending(t, err)
		free()
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job's round: %v", report)
		}
		res, replayed := r.mustSendUnder("single", increment+" OR id = ?", 1, 1, 2)
		wantReplayed(t, replayed, true)
		wantRows(t, res, 2)
		r.wantBalances(101, 101)
		r.wantReceipts(1)
	})
}

func TestKeyLostAnswerIsReadFromTheReceipt(t *testing.T) {
	t.Parallel()
	eachProxied(t, func(t *testing.T, r *rig, p *testproxy.Proxy, c *commits) {
		r.account(100, 100)
		r.items()
		r.mustSendUnder("warm", increment, 0, 1)
		struck := p.CutAfter(c.match)
		res, replayed := r.mustSendUnder("k", increment+" OR id = ?", 1, 1, 2)
		waitFor(t, "the answer is lost", struck)
		wantReplayed(t, replayed, false)
		wantRows(t, res, 2)
		struck = p.CutAfter(c.match)
		ctx, _ := keyed("rows")
		var id int
		if err := r.wrapped.QueryRowContext(ctx, r.q("INSERT INTO item (name) VALUES (?) RETURNING id"), "a").Scan(&id); err != nil || id != 1 {
			t.Errorf("RETURNING gives %d, %v; want 1", id, err)
		}
		waitFor(t, "the answer is lost", struck)
		r.wantBalances(101, 101)
		eventually(t, "the log is empty", func() bool { return r.left() == 0 })
	})
}

// A COMMIT goes unanswered, for a replayable transaction and for one that is not.
func TestKeyUnansweredCommitIsDecidedAndRepeatable(t *testing.T) {
	t.Parallel()
	for what, strike := range map[string]func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}{
		"committed": (*testproxy.Proxy).CutAfter, "not committed": (*testproxy.Proxy).CutBefore,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			eachProxied(t, func(t *testing.T, r *rig, p *testproxy.Proxy, _ *commits) {
				r.account(100, 100)
				r.receiptTable()
				send := func(key string, read, fail bool) (bool, error) {
					t.Helper()
					ctx, tx, k := r.beginUnder(key)
					if read {
						var n int
						if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM account").Scan(&n); err != nil {
							t.Fatal(err)
						}
					}
					wantRows(t, r.stage(ctx, tx, increment, 1, 1), 1)
					wantRows(t, r.stage(ctx, tx, increment, 1, 2), 1)
					if !fail {
						err := tx.Commit()
						return k.Replayed(), err
					}
					struck := strike(p, testproxy.Text("commit"))
					err := tx.Commit()
					waitFor(t, "the answer is lost", struck)
					return k.Replayed(), err
				}
				if _, err := send("replayable", false, true); err != nil {
					t.Fatal(err)
				}
				r.wantBalances(101, 101)
				ctx, tx, k := r.beginUnder("replayable")
				wantRows(t, r.stage(ctx, tx, increment, 1, 1), 1)
				wantRows(t, r.stage(ctx, tx, increment, 1, 2), 1)
				if err := tx.Commit(); err != nil || !k.Replayed() {
					t.Errorf("sent again: %v, replayed %v", err, k.Replayed())
				}
				r.wantBalances(101, 101)

				_, err := send("read", true, true)
				switch {
				case what == "committed" && err != nil:
					t.Errorf("it was committed, and Commit says %v", err)
				case what == "not committed" && (err == nil || errors.Is(err, bedsql.ErrPending)):
					t.Errorf("it was not committed, and Commit says %v", err)
				}
				replayed, err := send("read", true, false)
				if err != nil {
					t.Errorf("sent again: %v", err)
				}
				wantReplayed(t, replayed, what == "committed")
				r.wantBalances(102, 102)
				eventually(t, "the log is empty", func() bool { return r.left() == 0 })
			})
		})
	}
}

// As above, but the caller gets no answer: the job finds out.
func TestKeyCommitTheJobDecidedIsRepeatable(t *testing.T) {
	t.Parallel()
	eachProxied(t, func(t *testing.T, r *rig, p *testproxy.Proxy, _ *commits) {
		r.account(100)
		r.receiptTable()
		job := r.job()
		begin := func(read bool) (*sql.Tx, *bedsql.IdempotencyKey) {
			t.Helper()
			ctx, tx, k := r.beginUnder(fmt.Sprint("read ", read))
			if read {
				var n int
				if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM account").Scan(&n); err != nil {
					t.Fatal(err)
				}
			}
			wantRows(t, r.stage(ctx, tx, increment, 1, 1), 1)
			return tx, k
		}
		for i, read := range []bool{false, true} {
			tx, _ := begin(read)
			struck := p.CutBefore(testproxy.Text("commit"))
			p.Refuse() // those that would find it out in the call
			wantPending(t, tx.Commit())
			waitFor(t, "the connection is cut", struck)
			p.Accept()
			if _, err := job.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
			tx, k := begin(read)
			if err := tx.Commit(); err != nil {
				t.Errorf("sent again: %v", err)
			}
			wantReplayed(t, k.Replayed(), !read)
			r.wantBalances(101 + i)
		}
	}, func(c *bedsql.Config) { c.SyncMaxDeliveryTryTimes = 1 })
}

// In a soft transaction the writes behind a refused one go on.
func TestKeyPartOfParkedSoftWriteIsAppliedOnResend(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		send := func() (replayed bool, err error) {
			ctx, k := keyed("k")
			ctx, st, err := bedsql.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			r.stage(ctx, r.wrapped, "INSERT INTO account VALUES (?, ?)", 1, 5)
			wantReplayed(t, k.Replayed(), false)
			_, err = r.wrapped.ExecContext(ctx, r.q("INSERT INTO account VALUES (?, ?)"), 2, 6)
			wantUnusable(t, "a second write", err)
			r.stage(bedsql.WithKeyPart(ctx, "two"), r.wrapped, "INSERT INTO account VALUES (?, ?)", 2, 6)
			return k.Replayed(), st.End(context.Background())
		}
		replayed, err := send()
		wantReplayed(t, replayed, false)
		var refused *bedsql.RefusedError
		if !errors.As(err, &refused) {
			t.Errorf("End: %v, want the refusal", err)
		}
		r.exec("DELETE FROM account WHERE id = 1")
		replayed, err = send()
		wantReplayed(t, replayed, true)
		if err != nil {
			t.Errorf("End: %v", err)
		}
		r.wantBalances(5, 6)
	})
}

func TestKeyRetentionBoundsThePurge(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, exactlyOnce, func(c *bedsql.Config) {
			c.KeyRetention, c.ReceiptRetention = 3*time.Hour, time.Hour
		})
		r.account(100)
		job := func() {
			t.Helper()
			r.runOnce(func(c *asyncjob.Config) { c.KeyRetention, c.ReceiptRetention = 3*time.Hour, time.Hour }) // each new job purges at once
		}
		r.mustSendUnder("k", increment, 1, 1)
		closed := r.open(db.DSN)
		r.must(closed, increment, 0, 1)
		if err := closed.Close(); err != nil { // which erases the receipts that nobody needs
			t.Error(err)
		}
		r.wantReceipts(1)
		r.wantNoLog()
		r.receiptsAge(time.Minute)
		job() // finds that its log is gone
		r.receiptsAge(2 * time.Hour)
		job()
		r.wantReceipts(1)
		if _, replayed := r.mustSendUnder("k", increment, 1, 1); !replayed {
			t.Error("within its retention the key is forgotten")
		}
		r.wantNoLog() // of the second request, which would keep it
		r.receiptsAge(2 * time.Hour)
		job()
		r.wantReceipts(0)
		if _, replayed := r.mustSendUnder("k", increment, 1, 1); replayed {
			t.Error("after its retention the key is still known")
		}
		r.wantBalances(102)
	})
}

// The log may be out of reach when a request is sent: its key is still free.
func TestKeyUnloggedRequestCanBeRepeated(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		down := true
		r := newRig(t, db, func(c *bedsql.Config) {
			c.Storage = &hookedStorage{Storage: c.Storage, onAdd: func([]*txlog.Unit) error {
				if down {
					return errors.New("the log is down")
				}
				return nil
			}}
		})
		r.account(100)
		r.receiptTable()
		send := func() (err error, replayed bool) {
			ctx, k := keyed("k")
			if _, err := r.wrapped.ExecContext(ctx, r.q(increment), 1, 1); err != nil && !errors.Is(err, bedsql.ErrNotLogged) {
				t.Error(err)
			}
			tx, err := r.wrapped.BeginTx(bedsql.WithKeyPart(ctx, "two"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			r.must(tx, increment, 1, 1)
			return tx.Commit(), k.Replayed()
		}
		if err, _ := send(); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("Commit: %v, want ErrNotLogged", err)
		}
		r.wantBalances(100)
		r.wantReceipts(0)
		down = false
		for i := range 2 {
			err, replayed := send()
			if err != nil {
				t.Error(err)
			}
			wantReplayed(t, replayed, i > 0)
			r.wantBalances(102)
		}
	})
}
