package exactlyonce

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestReceiptIsErasedOnlyAfterDefiniteAttempts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// write brings about an attempt or more; nothing is left to the job
		// behind it but what it could not reach.
		write func(r *rig.Rig, p *testproxy.Proxy, c *rig.Commits)
		want  int
	}{
		{"delivered at once", func(r *rig.Rig, _ *testproxy.Proxy, _ *rig.Commits) {
			r.Must(r.Wrapped, rig.AddOne)
			tx := r.Begin()
			r.Must(tx, rig.AddOne)
			if err := tx.Commit(); err != nil {
				r.T.Fatal(err)
			}
		}, 0},
		{"refused", func(r *rig.Rig, _ *testproxy.Proxy, _ *rig.Commits) {
			if err := r.Fails(r.Wrapped, "INSERT INTO account VALUES (1, 5)"); errors.Is(err, bedsql.ErrPending) {
				r.T.Error(err)
			}
		}, 0},
		{"found by a retry after a lost answer", func(r *rig.Rig, p *testproxy.Proxy, c *rig.Commits) {
			struck := p.CutAfter(c.Match)
			r.Must(r.Wrapped, rig.AddOne)
			<-struck
		}, 1},
		{"found by its own COMMIT's caller after a lost answer", func(r *rig.Rig, p *testproxy.Proxy, c *rig.Commits) {
			tx := r.Begin()
			addAsRead(r, tx, reads["plain SELECT"])
			struck := p.CutAfter(c.Match)
			if err := tx.Commit(); err != nil {
				r.T.Error(err)
			}
			<-struck
		}, 1},
		{"handed over as not in doubt, then delivered by the job", func(r *rig.Rig, p *testproxy.Proxy, _ *rig.Commits) {
			p.Refuse()
			p.CutAll()
			rig.WantPending(r.T, r.Fails(r.Wrapped, rig.AddOne))
			if u := r.WantOneLog(); u.InDoubt {
				r.T.Error("nothing was sent, but the unit is in doubt")
			}
			p.Accept()
		}, 0},
		{"handed over in doubt, then found by the job", func(r *rig.Rig, p *testproxy.Proxy, c *rig.Commits) {
			pool := openWith(r, withoutRetry(r.Cfg))
			struck := p.CutAfter(c.Match)
			rig.WantPending(r.T, r.Fails(pool, rig.AddOne))
			<-struck
		}, 1},
		{"handed over in doubt, then applied by the job", func(r *rig.Rig, p *testproxy.Proxy, c *rig.Commits) {
			pool := openWith(r, withoutRetry(r.Cfg))
			struck := p.CutBefore(c.Match)
			rig.WantPending(r.T, r.Fails(pool, rig.AddOne))
			<-struck
			// It was the COMMIT of several round trips: that says enough.
			if u := r.WantOneLog(); !u.InDoubt {
				r.T.Error("the answer to COMMIT was lost, but the unit is not in doubt")
			}
		}, 1},
		{"its writer vanished", func(r *rig.Rig, _ *testproxy.Proxy, _ *rig.Commits) {
			r.Abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
			receipted(r)
		}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := rig.NewBehindProxy(t, db, rig.ExactlyOnce)
				committing := rig.CommitsOf(p)
				r.ReceiptTable()
				r.Account(0)
				c.write(r, p, committing)
				r.Drain(r.Job())
				_ = r.Wrapped.Close() // erases what was still to be erased
				r.ReceiptsAge(time.Hour)
				r.RunOnce() // finds that the log is gone
				r.WantReceipts(c.want)
				r.ReceiptsAge(attempt.DefaultRetention + time.Hour)
				r.RunOnce()
				r.WantReceipts(0)
			})
		})
	}
}

func withoutRetry(cfg bedsql.Config) bedsql.Config {
	cfg.NoSyncRetry = true
	return cfg
}

func TestReceiptOutlivesItsRetentionWhileLogged(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.ReceiptTable()
		r.Account(0)
		r.Abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
		receipted(r)
		u := r.WantOneLog()
		out := r.OnTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
			return attempt.Replay(context.Background(), d, conn, u, rig.ReceiptsOf(r))
		})
		if out.Err != nil {
			t.Fatal(out.Err)
		}
		r.ReceiptsAge(attempt.DefaultRetention + time.Hour)
		// A job that cannot deliver it yet, because it is too young.
		r.RunOnce(func(c *asyncjob.Config) { c.MaxDeliveryTryDelay = time.Hour })
		r.WantReceipts(1)
		r.WantOneLog()
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.WantBalances(1)
		r.WantReceipts(1)
	})
}

// purgeSteps follows a purge on its way through a proxy: matchers for its
// DELETE, and for the COMMIT behind it.
type purgeSteps struct{ deleting bool }

func (s *purgeSteps) commit(message []byte) bool {
	if testproxy.Text("DELETE FROM bed_receipt")(message) {
		s.deleting = true
	}
	return s.deleting && testproxy.Text("commit")(message)
}

func TestPurgingKeepsNoWriterWaiting(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.ReceiptTable()
		r.Account(0)
		const old = 50
		for range old {
			u := &entry.Unit{ID: entry.NewID(), Receipt: "x", Statements: []entry.Statement{{SQL: rig.AddOne}}}
			u.Receipt = u.ID
			if out := r.OnTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
				return attempt.Replay(context.Background(), d, conn, u, rig.ReceiptsOf(r))
			}); out.Err != nil {
				t.Fatal(out.Err)
			}
		}
		r.ReceiptsAge(time.Hour)
		r.RunOnce() // finds that their entries are gone
		r.ReceiptsAge(attempt.DefaultRetention + time.Hour)
		// Two jobs purge at the same time: the second deletes the same rows as the first. InnoDB
		// would lock the gap for missing rows.
		p := testproxy.New(t, r.DB.Addr())
		readCommitted := p.Count(testproxy.Text("read committed"))
		purging, purge := p.Hold(testproxy.Text("DELETE FROM bed_receipt"))
		defer purge()
		through := *r
		through.DB = r.DB.Via(p.Addr())
		round := make(chan error, 1)
		job := through.Job()
		go func() {
			_, err := job.RunOnce(context.Background())
			round <- err
		}()
		rig.WaitFor(t, "the second purge was about to delete", purging)
		r.RunOnce()
		r.WantReceipts(0)
		committing, commit := p.Hold(new(purgeSteps).after(purge))
		defer commit()
		purge()
		rig.WaitFor(t, "the second purge was about to commit", committing)
		ctx, cancel := context.WithTimeout(context.Background(), rig.Patience)
		defer cancel()
		for range 20 {
			if _, err := r.Wrapped.ExecContext(ctx, rig.AddOne); err != nil {
				t.Fatalf("a write beside a purge: %v", err)
			}
		}
		commit()
		if err := <-round; err != nil {
			t.Error(err)
		}
		if readCommitted() == 0 {
			t.Error("the purge did not ask for READ COMMITTED")
		}
		r.WantBalances(old + 20)
	})
}

// after is commit for a DELETE that was seen already.
func (s *purgeSteps) after(func()) func([]byte) bool {
	s.deleting = true
	return s.commit
}

// Some of the existing receipts may belong to writes that are waiting themselves.
func TestErasingReceiptsDoesNotWaitForOthers(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.ReceiptTable()
		const all, erased, gone, purged = 80, 20, 20, 20
		ids, log := make([]string, all), r.Storage.Identity()
		for i := range ids {
			ids[i] = entry.NewID()
			r.Must(r.Bare, "INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until, log_gone) VALUES (?, ?, ?, 0, 1, ?, 1)", ids[i], ids[i], log, i)
		}
		r.Must(r.Bare, "UPDATE bed_receipt SET log_gone = 0 WHERE keep_until < ?", erased+gone)
		r.Must(r.Bare, "UPDATE bed_receipt SET keep_until = ? WHERE keep_until >= ?", time.Now().Add(time.Hour).UnixMilli(), erased+gone+purged)
		other, err := r.Bare.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Rollback() }()
		if _, err := other.Exec(r.Q("UPDATE bed_receipt SET void = 0, creation_time = 2 WHERE id = ?"), ids[all-1]); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		r.OnTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
			if err := attempt.EraseReceipts(ctx, d, conn, rig.ReceiptsOf(r), ids[:erased]); err != nil {
				t.Fatalf("erasing waited: %v", err)
			}
			missing := func(_ context.Context, ids []string) ([]string, error) { return ids, nil }
			if _, n, err := attempt.PurgeReceipts(ctx, d, conn, rig.ReceiptsOf(r), "", missing); err != nil || n != purged {
				t.Fatalf("purging waited, or erased %d: %v", n, err)
			}
			return attempt.Outcome{}
		})
		if err := other.Rollback(); err != nil {
			t.Fatal(err)
		}
		r.WantReceipts(all - erased - purged)
		if n := r.Count("SELECT COUNT(*) FROM bed_receipt WHERE log_gone = 0"); n != 0 {
			t.Errorf("%d receipts were not marked", n)
		}
	})
}

// A receipt's retention starts when a purge finds its entry gone, regardless of the receipt's age.
// A log back from an outage restarts it.
func TestReceiptRetentionBeginsWhenItsEntryIsGone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.ReceiptTable()
		long := time.Now().Add(90 * 24 * time.Hour).UnixMilli()
		for id, keep := range map[string]int64{"old": 1, "kept longer": long, "of another log": 1} {
			log := r.Storage.Identity()
			if id == "of another log" {
				log = "another"
			}
			r.Must(r.Bare, "INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES (?, ?, ?, 0, 1, ?)", id, id, log, keep)
		}
		r.Must(r.Bare, "INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until, fingerprint) VALUES ('key', 'key', ?, 0, 1, 1, 'f')", r.Storage.Identity())
		r.Must(r.Bare, "INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES ('new', 'new', ?, 0, ?, 1)", r.Storage.Identity(), time.Now().UnixMilli())
		inLog := true
		// purge lets time pass, purges and checks the remaining receipts.
		purge := func(passes time.Duration, want ...string) {
			t.Helper()
			r.ReceiptsAge(passes)
			r.OnTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
				receipts := rig.ReceiptsOf(r)
				receipts.KeyRetention = 2 * time.Hour
				missing := func(_ context.Context, ids []string) ([]string, error) {
					if inLog {
						return nil, nil
					}
					return ids, nil
				}
				if next, _, err := attempt.PurgeReceipts(t.Context(), d, conn, receipts, "", missing); err != nil || next != "" {
					t.Fatalf("next %q, %v", next, err)
				}
				return attempt.Outcome{}
			})
			if n := r.Count("SELECT COUNT(*) FROM bed_receipt WHERE id IN ('" + strings.Join(want, "', '") + "')"); n != len(want) {
				t.Errorf("there are %d of the receipts %q", n, want)
			}
			r.WantReceipts(len(want))
		}
		const day = 24 * time.Hour
		all := []string{"kept longer", "key", "of another log", "old", "new"}
		purge(0, all...)
		inLog = false
		purge(0, all...) // found gone
		// The writer of a new one is about to erase it.
		if n := r.Count("SELECT COUNT(*) FROM bed_receipt WHERE log_gone = 1"); n != 3 {
			t.Errorf("the entries of %d receipts were found gone, want 3", n)
		}
		purge(time.Hour, all...)
		inLog = true
		purge(6*day, all...) // they are back
		inLog = false
		purge(day+2*time.Hour, all...) // found gone anew
		inLog = true
		purge(8*day, all...) // they are back, after their retention
		inLog = false
		purge(8*day, all...) // found gone anew
		purge(2*time.Hour, "kept longer", "of another log", "old", "new")
		purge(6*day, "kept longer", "of another log", "old", "new")
		purge(day, "kept longer", "of another log")
		purge(80*day, "of another log")
	})
}
