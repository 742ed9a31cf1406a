package keys

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
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestKeyOneCallerAppliesAndOthersReplay(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		const callers = 16
		r := rig.New(t, db)
		r.Account(0)
		r.ReceiptTable()
		pools := []*sql.DB{r.Wrapped, r.Open(db.DSN)} // as of two processes
		race := func(name string, send func(ctx context.Context, pool *sql.DB) error) {
			t.Helper()
			var (
				all      sync.WaitGroup
				replayed atomic.Int64
			)
			for i := range callers {
				all.Go(func() {
					ctx, k := rig.Keyed(name)
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
			res, err := pool.ExecContext(ctx, r.Q(rig.Increment), 1, 1)
			if err == nil {
				rig.WantRows(t, res, 1)
			}
			return err
		}
		transaction := func(ctx context.Context, pool *sql.DB) error {
			tx, err := pool.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			_, err = tx.ExecContext(ctx, r.Q(rig.Increment), 1, 1)
			return errors.Join(err, tx.Commit())
		}
		race("single", single)
		r.WantBalances(1)
		race("transaction", transaction)
		r.WantBalances(2)
		// The first holds the key for a while, and then rolls back.
		for _, send := range []struct {
			name string
			send func(ctx context.Context, pool *sql.DB) error
		}{{"single after a rollback", single}, {"transaction after a rollback", transaction}} {
			_, tx, _ := r.BeginUnder(send.name)
			r.Must(tx, rig.Increment, 100, 1)
			done := make(chan struct{})
			go func() {
				defer close(done)
				race(send.name, send.send)
			}()
			rig.Eventually(t, "others wait for it", func() bool { return waitingOrBusy(r) >= 2 })
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
			<-done
		}
		r.WantBalances(4)
		r.WantNoLog()
	})
}

// waitingOrBusy is waiting; for a SQLite file, which has no sessions to list, it counts the
// connections in use.
func waitingOrBusy(r *rig.Rig) int {
	r.T.Helper()
	if r.DB.Driver == testdb.DriverSQLite {
		return r.Wrapped.Stats().InUse
	}
	return r.Waiting()
}

func TestKeyNextCallerAppliesAPendingWrite(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, rig.Impatient(db), rig.NoSyncRetry)
		r.Account(100)
		r.ReceiptTable()
		free := r.BlockRow(1)
		_, _, err := r.SendUnder("k", rig.Increment, 1, 1)
		first := rig.WantPending(t, err)
		free()
		res, replayed := r.MustSendUnder("k", rig.Increment, 1, 1)
		rig.WantReplayed(t, replayed, false)
		rig.WantRows(t, res, 1)
		r.WantBalances(101)
		if u := r.WantLeft(1); u.ID != first.EntryID {
			t.Errorf("the log holds %s, want the first one's, %s", u.ID, first.EntryID)
		}
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job's round: %v", report)
		}
		r.WantBalances(101)
		r.WantNoLog()
		r.WantReceipts(1)
	})
}

func TestKeyPendingWriteReturnsTheJobsResult(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, rig.Impatient(db), rig.NoSyncRetry)
		r.Account(100, 100)
		r.ReceiptTable()
		free := r.BlockRow(1)
		_, _, err := r.SendUnder("single", rig.Increment+" OR id = ?", 1, 1, 2)
		rig.WantPending(t, err)
		free()
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job's round: %v", report)
		}
		res, replayed := r.MustSendUnder("single", rig.Increment+" OR id = ?", 1, 1, 2)
		rig.WantReplayed(t, replayed, true)
		rig.WantRows(t, res, 2)
		r.WantBalances(101, 101)
		r.WantReceipts(1)
	})
}

func TestKeyLostAnswerIsReadFromTheReceipt(t *testing.T) {
	t.Parallel()
	rig.EachProxied(t, func(t *testing.T, r *rig.Rig, p *testproxy.Proxy, c *rig.Commits) {
		r.Account(100, 100)
		items(r)
		r.MustSendUnder("warm", rig.Increment, 0, 1)
		struck := p.CutAfter(c.Match)
		res, replayed := r.MustSendUnder("k", rig.Increment+" OR id = ?", 1, 1, 2)
		rig.WaitFor(t, "the answer is lost", struck)
		rig.WantReplayed(t, replayed, false)
		rig.WantRows(t, res, 2)
		if r.Returns(t) {
			struck = p.CutAfter(c.Match)
			ctx, _ := rig.Keyed("rows")
			var id int
			if err := r.Wrapped.QueryRowContext(ctx, r.Q("INSERT INTO item (name) VALUES (?) RETURNING id"), "a").Scan(&id); err != nil || id != 1 {
				t.Errorf("RETURNING gives %d, %v; want 1", id, err)
			}
			rig.WaitFor(t, "the answer is lost", struck)
		}
		r.WantBalances(101, 101)
		rig.Eventually(t, "the log is empty", func() bool { return r.Left() == 0 })
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
			rig.EachProxied(t, func(t *testing.T, r *rig.Rig, p *testproxy.Proxy, _ *rig.Commits) {
				r.Account(100, 100)
				r.ReceiptTable()
				send := func(key string, read, fail bool) (bool, error) {
					t.Helper()
					ctx, tx, k := r.BeginUnder(key)
					if read {
						var n int
						if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM account").Scan(&n); err != nil {
							t.Fatal(err)
						}
					}
					rig.WantRows(t, r.Stage(ctx, tx, rig.Increment, 1, 1), 1)
					rig.WantRows(t, r.Stage(ctx, tx, rig.Increment, 1, 2), 1)
					if !fail {
						err := tx.Commit()
						return k.Replayed(), err
					}
					struck := strike(p, testproxy.Text("commit"))
					err := tx.Commit()
					rig.WaitFor(t, "the answer is lost", struck)
					return k.Replayed(), err
				}
				if _, err := send("replayable", false, true); err != nil {
					t.Fatal(err)
				}
				r.WantBalances(101, 101)
				ctx, tx, k := r.BeginUnder("replayable")
				rig.WantRows(t, r.Stage(ctx, tx, rig.Increment, 1, 1), 1)
				rig.WantRows(t, r.Stage(ctx, tx, rig.Increment, 1, 2), 1)
				if err := tx.Commit(); err != nil || !k.Replayed() {
					t.Errorf("sent again: %v, replayed %v", err, k.Replayed())
				}
				r.WantBalances(101, 101)

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
				rig.WantReplayed(t, replayed, what == "committed")
				r.WantBalances(102, 102)
				rig.Eventually(t, "the log is empty", func() bool { return r.Left() == 0 })
			})
		})
	}
}

// As above, but the caller gets no answer: the job finds out.
func TestKeyCommitTheJobDecidedIsRepeatable(t *testing.T) {
	t.Parallel()
	rig.EachProxied(t, func(t *testing.T, r *rig.Rig, p *testproxy.Proxy, _ *rig.Commits) {
		r.Account(100)
		r.ReceiptTable()
		job := r.Job()
		begin := func(read bool) (*sql.Tx, *bedsql.IdempotencyKey) {
			t.Helper()
			ctx, tx, k := r.BeginUnder(fmt.Sprint("read ", read))
			if read {
				var n int
				if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM account").Scan(&n); err != nil {
					t.Fatal(err)
				}
			}
			rig.WantRows(t, r.Stage(ctx, tx, rig.Increment, 1, 1), 1)
			return tx, k
		}
		for i, read := range []bool{false, true} {
			tx, _ := begin(read)
			struck := p.CutBefore(testproxy.Text("commit"))
			p.Refuse() // those that would find it out in the call
			rig.WantPending(t, tx.Commit())
			rig.WaitFor(t, "the connection is cut", struck)
			p.Accept()
			if _, err := job.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
			tx, k := begin(read)
			if err := tx.Commit(); err != nil {
				t.Errorf("sent again: %v", err)
			}
			rig.WantReplayed(t, k.Replayed(), !read)
			r.WantBalances(101 + i)
		}
	}, func(c *bedsql.Config) { c.SyncMaxDeliveryTryTimes = 1 })
}

// In a soft transaction the writes behind a refused one go on.
func TestKeyPartOfParkedSoftWriteIsAppliedOnResend(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		send := func() (replayed bool, err error) {
			ctx, k := rig.Keyed("k")
			ctx, st, err := bedsql.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			r.Stage(ctx, r.Wrapped, "INSERT INTO account VALUES (?, ?)", 1, 5)
			rig.WantReplayed(t, k.Replayed(), false)
			_, err = r.Wrapped.ExecContext(ctx, r.Q("INSERT INTO account VALUES (?, ?)"), 2, 6)
			rig.WantUnusable(t, "a second write", err)
			r.Stage(bedsql.WithKeyPart(ctx, "two"), r.Wrapped, "INSERT INTO account VALUES (?, ?)", 2, 6)
			return k.Replayed(), st.End(context.Background())
		}
		replayed, err := send()
		rig.WantReplayed(t, replayed, false)
		var refused *bedsql.RefusedError
		if !errors.As(err, &refused) {
			t.Errorf("End: %v, want the refusal", err)
		}
		r.Exec("DELETE FROM account WHERE id = 1")
		replayed, err = send()
		rig.WantReplayed(t, replayed, true)
		if err != nil {
			t.Errorf("End: %v", err)
		}
		r.WantBalances(5, 6)
	})
}

func TestKeyRetentionBoundsThePurge(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce, func(c *bedsql.Config) {
			c.KeyRetention, c.ReceiptRetention = 3*time.Hour, time.Hour
		})
		r.Account(100)
		job := func() {
			t.Helper()
			r.RunOnce(func(c *asyncjob.Config) { c.KeyRetention, c.ReceiptRetention = 3*time.Hour, time.Hour }) // each new job purges at once
		}
		r.MustSendUnder("k", rig.Increment, 1, 1)
		closed := r.Open(db.DSN)
		r.Must(closed, rig.Increment, 0, 1)
		if err := closed.Close(); err != nil { // which erases the receipts that nobody needs
			t.Error(err)
		}
		r.WantReceipts(1)
		r.WantNoLog()
		r.ReceiptsAge(time.Minute)
		job() // finds that its log is gone
		r.ReceiptsAge(2 * time.Hour)
		job()
		r.WantReceipts(1)
		if _, replayed := r.MustSendUnder("k", rig.Increment, 1, 1); !replayed {
			t.Error("within its retention the key is forgotten")
		}
		r.WantNoLog() // of the second request, which would keep it
		r.ReceiptsAge(2 * time.Hour)
		job()
		r.WantReceipts(0)
		if _, replayed := r.MustSendUnder("k", rig.Increment, 1, 1); replayed {
			t.Error("after its retention the key is still known")
		}
		r.WantBalances(102)
	})
}

// The log may be out of reach when a request is sent: its key is still free.
func TestKeyUnloggedRequestCanBeRepeated(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		down := true
		r := rig.New(t, db, func(c *bedsql.Config) {
			c.Storage = &rig.HookedStorage{Storage: c.Storage, OnAdd: func([]*entry.Unit) error {
				if down {
					return errors.New("the log is down")
				}
				return nil
			}}
		})
		r.Account(100)
		r.ReceiptTable()
		send := func() (err error, replayed bool) {
			ctx, k := rig.Keyed("k")
			if _, err := r.Wrapped.ExecContext(ctx, r.Q(rig.Increment), 1, 1); err != nil && !errors.Is(err, bedsql.ErrNotLogged) {
				t.Error(err)
			}
			tx, err := r.Wrapped.BeginTx(bedsql.WithKeyPart(ctx, "two"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			r.Must(tx, rig.Increment, 1, 1)
			return tx.Commit(), k.Replayed()
		}
		if err, _ := send(); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("Commit: %v, want ErrNotLogged", err)
		}
		r.WantBalances(100)
		r.WantReceipts(0)
		down = false
		for i := range 2 {
			err, replayed := send()
			if err != nil {
				t.Error(err)
			}
			rig.WantReplayed(t, replayed, i > 0)
			r.WantBalances(102)
		}
	})
}
