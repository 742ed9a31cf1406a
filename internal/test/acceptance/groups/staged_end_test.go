package groups

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

func TestStagedDiscardLeavesNothingAnywhere(t *testing.T) {
	t.Parallel()
	rigs := rig.News(t, testdb.SQLite(t))
	ctx, st := rig.Staged(t)
	var results []sql.Result
	for _, r := range rigs {
		results = append(results, r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1))
	}
	open, err := rigs[0].Wrapped.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	rigs[0].Stage(ctx, open, rig.Increment, 1, 1)
	st.Discard()
	st.Discard()
	for _, r := range rigs {
		if _, err := r.Wrapped.ExecContext(ctx, r.Q(rig.Increment), 1, 1); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("Exec after Discard: %v, want ErrEnded", err)
		}
		if tx, err := r.Wrapped.BeginTx(ctx, nil); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("BeginTx after Discard: %v, %v; want ErrEnded", tx, err)
		}
	}
	if err := open.Commit(); !errors.Is(err, bedsql.ErrEnded) {
		t.Errorf("Commit after Discard: %v, want ErrEnded", err)
	}
	for range 2 {
		if err := st.End(context.Background()); !errors.Is(err, bedsql.ErrEnded) || !strings.Contains(err.Error(), "discarded") {
			t.Errorf("End after Discard: %v, want ErrEnded, for nothing was delivered", err)
		}
	}
	for _, res := range results {
		rig.WantResult(t, res, bedsql.ErrStaged)
		if _, err := res.RowsAffected(); !strings.Contains(err.Error(), "discarded") {
			t.Errorf("RowsAffected after Discard: %v", err)
		}
	}
	for _, r := range rigs {
		r.WantBalances(100)
	}
	rigs[0].WantNoLog()
}

func TestStagedAContextThatEndsBeforeEndDiscards(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		begun, cancel := context.WithCancel(context.Background())
		ctx, st, err := bedsql.Begin(begun, bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		res := r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1)
		cancel()
		if _, err := r.Wrapped.ExecContext(context.WithoutCancel(ctx), r.Q(rig.Increment), 1, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("Exec: %v, want context.Canceled", err)
		}
		for range 2 {
			if err := st.End(context.Background()); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "discarded") {
				t.Errorf("End: %v, want that it is discarded, and context.Canceled", err)
			}
		}
		rig.WantResult(t, res, context.Canceled)
		r.WantBalances(100)
		r.WantNoLog()
	})
}

func TestStagedLogDownAtEndMeansNothingAnywhere(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		logDB := testdb.NewLog(t, db.Driver)
		p := testproxy.New(t, logDB.Addr())
		rigs := rig.News(t, logDB.Via(p.Addr()))
		ctx, st := rig.Staged(t)
		var results []sql.Result
		for _, r := range rigs {
			results = append(results, r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1))
		}
		p.Refuse()
		p.CutAll()
		err := st.End(context.Background())
		if !errors.Is(err, bedsql.ErrNotLogged) || errors.Is(err, bedsql.ErrPending) {
			t.Errorf("End: %v, want ErrNotLogged", err)
		}
		p.Accept()
		if again := st.End(context.Background()); !errors.Is(again, bedsql.ErrNotLogged) {
			t.Errorf("End again: %v, want the same", again)
		}
		for i, r := range rigs {
			rig.WantResult(t, results[i], bedsql.ErrNotLogged)
			r.WantBalances(100)
		}
		rigs[0].WantNoLog()
	})
}

func TestStagedLogInDoubtAtEndIsAskedByID(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		logDB := testdb.NewLog(t, db.Driver)
		rigs := rig.News(t, logDB, rig.ExactlyOnce, func(c *bedsql.Config) {
			if _, ok := c.Storage.(*inDoubtStorage); !ok {
				c.Storage = &inDoubtStorage{c.Storage}
			}
		})
		ctx, st := rig.Staged(t)
		var results []sql.Result
		for _, r := range rigs {
			results = append(results, r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1))
		}
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		for i, r := range rigs {
			if rows, err := results[i].RowsAffected(); rows != 1 || err != nil {
				t.Errorf("%d rows, %v", rows, err)
			}
			r.WantBalances(101)
		}
		rigs[0].WantNoLog()
	})
}

// inDoubtStorage loses the answer to what was added.
type inDoubtStorage struct{ txlog.Storage }

func (s *inDoubtStorage) Add(ctx context.Context, lease time.Duration, units ...*entry.Unit) error {
	if err := s.Storage.Add(ctx, lease, units...); err != nil {
		return err
	}
	return fmt.Errorf("%w: the answer is lost", txlog.ErrInDoubt)
}

func TestStagedLoggedGroupIsDeliveredWithoutItsCaller(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		logDB := testdb.NewLog(t, db.Driver)
		ending, end := context.WithCancel(context.Background())
		rigs := rig.News(t, logDB, rig.ExactlyOnce, func(c *bedsql.Config) {
			if _, ok := c.Storage.(*rig.HookedStorage); !ok {
				c.Storage = &rig.HookedStorage{Storage: c.Storage, AfterAdd: end}
			}
		})
		ctx, st := rig.Staged(t)
		for _, r := range rigs {
			r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1)
			r.Stage(ctx, r.Wrapped, rig.Increment, 1, 2)
		}
		err := st.End(ending)
		rig.WantPending(t, err)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("End: %v, want it to say that its context ended", err)
		}
		rigs[0].Drain(jobForAll(t, rigs))
		for _, r := range rigs {
			r.WantBalances(101, 101)
		}
	})
}

func TestStagedUnreachableSourceIsLeftToTheJob(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			logDB := testdb.SQLite(t)
			var shared txlog.Storage
			share := func(c *bedsql.Config) {
				if shared == nil {
					shared = c.Storage
				}
				c.Storage = shared
			}
			up := rig.NewWithLog(t, testdb.SQLite(t), logDB, share, guarantee)
			up.Account(100)
			down := rig.NewWithLog(t, rig.FreshLike(t, db), logDB, share, guarantee)
			down.Account(100, 100)
			p := testproxy.New(t, down.DB.Addr())
			down.DB = down.DB.Via(p.Addr())
			down.Wrapped = down.Open(down.DB.DSN)
			p.Refuse() // and has never been reached: even its table of receipts is missing
			ctx, st := rig.Staged(t)
			var results []sql.Result
			for id := range 2 {
				results = append(results, down.Stage(ctx, down.Wrapped, rig.Increment, 1, id+1))
			}
			applied := up.Stage(ctx, up.Wrapped, rig.Increment, 1, 1)
			rig.WantPending(t, st.End(context.Background()))
			rig.WantRows(t, applied, 1)
			for _, res := range results {
				rig.WantResult(t, res, bedsql.ErrPending)
			}
			up.WantBalances(101)
			down.WantBalances(100, 100)
			u := down.WantLeft(2)
			if u.TransactionID != st.ID() || u.Parked || len(u.Statements) != 2 {
				t.Errorf("what is left in the log: %+v", u)
			}
			p.Accept()
			if report := down.RunOnce(); report.Delivered != 1 {
				t.Errorf("the job's round: %v", report)
			}
			down.WantBalances(101, 101)
			down.WantNoLog()
		})
	})
}

// Its table of receipts could not be looked for when the write was staged.
func TestStagedRecoveredDataSourceIsDelivered(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.ExactlyOnce)
		r.Account(100)
		p.Refuse()
		ctx, st := rig.Staged(t)
		res := r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1)
		p.Accept()
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		rig.WantRows(t, res, 1)
		r.WantBalances(101)
		r.WantNoLog()
	})
}

func TestStagedEndIsForManyCallersAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		ctx, st := rig.Staged(t)
		res := r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1)
		refusedOne := r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1)
		var all sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			all.Go(func() {
				errs[i] = st.End(context.Background())
				if _, err := res.RowsAffected(); err != nil {
					t.Errorf("after End RowsAffected says %v", err)
				}
				st.Discard() // does nothing any more
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
		rig.WantRows(t, refusedOne, 1)
		r.WantBalances(102)
	})
}

func TestStagedExecDuringEndIsRecordedOrRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		const callers, each = 4, 50
		r := rig.New(t, db, rig.ExactlyOnce)
		r.Account(0)
		ctx, st := rig.Staged(t)
		var (
			all      sync.WaitGroup
			mu       sync.Mutex
			recorded []sql.Result
		)
		begun := make(chan struct{}, callers)
		for range callers {
			all.Go(func() {
				for i := range each {
					res, err := r.Wrapped.ExecContext(ctx, r.Q(rig.Increment), 1, 1)
					switch {
					case err == nil:
						mu.Lock()
						recorded = append(recorded, res)
						mu.Unlock()
					case !errors.Is(err, bedsql.ErrEnded):
						t.Error(err)
					}
					if i == 1 {
						begun <- struct{}{}
					}
				}
			})
		}
		<-begun
		if err := st.End(context.Background()); err != nil {
			t.Error(err)
		}
		all.Wait()
		r.WantBalances(len(recorded))
		for _, res := range recorded {
			rig.WantRows(t, res, 1)
		}
		r.WantNoLog()
	})
}

func TestStagedDeliveryConnectionsAreBoundedAndClosed(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		const groups, most = 40, 32
		r, p := rig.NewBehindProxy(t, db, rig.ExactlyOnce)
		r.ReceiptTable()
		r.Account(0, 0)
		r.Wrapped.SetMaxIdleConns(0)
		end := func() (done func()) {
			t.Helper()
			var all sync.WaitGroup
			for range groups {
				all.Go(func() {
					ctx, st, err := bedsql.Begin(context.Background(), bedsql.Staged())
					if err != nil {
						t.Error(err)
						return
					}
					for id := range 2 {
						if _, err := r.Wrapped.ExecContext(ctx, r.Q(rig.Increment), 1, id+1); err != nil {
							t.Error(err)
						}
					}
					if err := st.End(context.Background()); err != nil {
						t.Error(err)
					}
				})
			}
			return all.Wait
		}
		// The table of receipts is looked for by the first write.
		ctx, st := rig.Staged(t)
		r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1)
		st.Discard()
		rig.Eventually(t, "nothing is open", func() bool { return p.Open() == 0 })
		free := r.BlockRow(1)
		done := end()
		rig.Eventually(t, "all groups are logged", func() bool { return r.Left() == 2*groups })
		rig.Eventually(t, "all connections are in use", func() bool { return p.Open() >= most })
		if n := p.Open(); n > most {
			t.Errorf("%d connections are in use, want %d at the most", n, most)
		}
		free()
		done()
		r.WantBalances(groups, groups)
		// A stale connection is not met a second time, however many there are.
		p.CutAll()
		end()()
		r.WantBalances(2*groups, 2*groups)
		r.WantNoLog()
		if err := r.Wrapped.Close(); err != nil {
			t.Error(err)
		}
		rig.Eventually(t, "all connections are closed", func() bool { return p.Open() == 0 })
	})
}
