package acceptance

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
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

func TestStagedDiscardLeavesNothingAnywhere(t *testing.T) {
	t.Parallel()
	rigs := newRigs(t, testdb.SQLite(t))
	ctx, st := staged(t)
	var results []sql.Result
	for _, r := range rigs {
		results = append(results, r.stage(ctx, r.wrapped, increment, 1, 1))
	}
	open, err := rigs[0].wrapped.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	rigs[0].stage(ctx, open, increment, 1, 1)
	st.Discard()
	st.Discard()
	for _, r := range rigs {
		if _, err := r.wrapped.ExecContext(ctx, r.q(increment), 1, 1); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("Exec after Discard: %v, want ErrEnded", err)
		}
		if tx, err := r.wrapped.BeginTx(ctx, nil); !errors.Is(err, bedsql.ErrEnded) {
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
		wantResult(t, res, bedsql.ErrStaged)
		if _, err := res.RowsAffected(); !strings.Contains(err.Error(), "discarded") {
			t.Errorf("RowsAffected after Discard: %v", err)
		}
	}
	for _, r := range rigs {
		r.wantBalances(100)
	}
	rigs[0].wantNoLog()
}

func TestStagedAContextThatEndsBeforeEndDiscards(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		begun, cancel := context.WithCancel(context.Background())
		ctx, st, err := bedsql.Begin(begun, bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		res := r.stage(ctx, r.wrapped, increment, 1, 1)
		cancel()
		if _, err := r.wrapped.ExecContext(context.WithoutCancel(ctx), r.q(increment), 1, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("Exec: %v, want context.Canceled", err)
		}
		for range 2 {
			if err := st.End(context.Background()); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "discarded") {
				t.Errorf("End: %v, want that it is discarded, and context.Canceled", err)
			}
		}
		wantResult(t, res, context.Canceled)
		r.wantBalances(100)
		r.wantNoLog()
	})
}

func TestStagedLogDownAtEndMeansNothingAnywhere(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, logDB testdb.DB) {
		p := testproxy.New(t, logDB.Addr())
		rigs := newRigs(t, logDB.Via(p.Addr()))
		ctx, st := staged(t)
		var results []sql.Result
		for _, r := range rigs {
			results = append(results, r.stage(ctx, r.wrapped, increment, 1, 1))
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
			wantResult(t, results[i], bedsql.ErrNotLogged)
			r.wantBalances(100)
		}
		rigs[0].wantNoLog()
	})
}

func TestStagedLogInDoubtAtEndIsAskedByID(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, logDB testdb.DB) {
		rigs := newRigs(t, logDB, exactlyOnce, func(c *bedsql.Config) {
			if _, ok := c.Storage.(*inDoubtStorage); !ok {
				c.Storage = &inDoubtStorage{c.Storage}
			}
		})
		ctx, st := staged(t)
		var results []sql.Result
		for _, r := range rigs {
			results = append(results, r.stage(ctx, r.wrapped, increment, 1, 1))
		}
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		for i, r := range rigs {
			if rows, err := results[i].RowsAffected(); rows != 1 || err != nil {
				t.Errorf("%d rows, %v", rows, err)
			}
			r.wantBalances(101)
		}
		rigs[0].wantNoLog()
	})
}

// inDoubtStorage loses the answer to what was added.
type inDoubtStorage struct{ txlog.Storage }

func (s *inDoubtStorage) Add(ctx context.Context, lease time.Duration, units ...*txlog.Unit) error {
	if err := s.Storage.Add(ctx, lease, units...); err != nil {
		return err
	}
	return fmt.Errorf("%w: the answer is lost", txlog.ErrInDoubt)
}

func TestStagedLoggedGroupIsDeliveredWithoutItsCaller(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, logDB testdb.DB) {
		ending, end := context.WithCancel(context.Background())
		rigs := newRigs(t, logDB, exactlyOnce, func(c *bedsql.Config) {
			if _, ok := c.Storage.(*hookedStorage); !ok {
				c.Storage = &hookedStorage{Storage: c.Storage, afterAdd: end}
			}
		})
		ctx, st := staged(t)
		for _, r := range rigs {
			r.stage(ctx, r.wrapped, increment, 1, 1)
			r.stage(ctx, r.wrapped, increment, 1, 2)
		}
		err := st.End(ending)
		wantPending(t, err)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("End: %v, want it to say that its context ended", err)
		}
		rigs[0].drain(jobForAll(t, rigs))
		for _, r := range rigs {
			r.wantBalances(101, 101)
		}
	})
}

func TestStagedUnreachableSourceIsLeftToTheJob(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			logDB := testdb.SQLite(t)
			var shared txlog.Storage
			share := func(c *bedsql.Config) {
				if shared == nil {
					shared = c.Storage
				}
				c.Storage = shared
			}
			up := newRigWithLog(t, testdb.SQLite(t), logDB, share, guarantee)
			up.account(100)
			down := newRigWithLog(t, freshLike(t, db), logDB, share, guarantee)
			down.account(100, 100)
			p := testproxy.New(t, down.db.Addr())
			down.db = down.db.Via(p.Addr())
			down.wrapped = down.open(down.db.DSN)
			p.Refuse() // and has never been reached: even its table of receipts is missing
			ctx, st := staged(t)
			var results []sql.Result
			for id := range 2 {
				results = append(results, down.stage(ctx, down.wrapped, increment, 1, id+1))
			}
			applied := up.stage(ctx, up.wrapped, increment, 1, 1)
			wantPending(t, st.End(context.Background()))
			wantRows(t, applied, 1)
			for _, res := range results {
				wantResult(t, res, bedsql.ErrPending)
			}
			up.wantBalances(101)
			down.wantBalances(100, 100)
			u := down.wantLeft(2)
			if u.TransactionID != st.ID() || u.Parked || len(u.Statements) != 2 {
				t.Errorf("what is left in the log: %+v", u)
			}
			p.Accept()
			if report := down.runOnce(); report.Delivered != 1 {
				t.Errorf("the job's round: %v", report)
			}
			down.wantBalances(101, 101)
			down.wantNoLog()
		})
	})
}

// Its table of receipts could not be looked for when the write was staged.
func TestStagedRecoveredDataSourceIsDelivered(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, exactlyOnce)
		r.account(100)
		p.Refuse()
		ctx, st := staged(t)
		res := r.stage(ctx, r.wrapped, increment, 1, 1)
		p.Accept()
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		wantRows(t, res, 1)
		r.wantBalances(101)
		r.wantNoLog()
	})
}

func TestStagedEndIsForManyCallersAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		ctx, st := staged(t)
		res := r.stage(ctx, r.wrapped, increment, 1, 1)
		refusedOne := r.stage(ctx, r.wrapped, increment, 1, 1)
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
		wantRows(t, refusedOne, 1)
		r.wantBalances(102)
	})
}

func TestStagedExecDuringEndIsRecordedOrRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		const callers, each = 4, 50
		r := newRig(t, db, exactlyOnce)
		r.account(0)
		ctx, st := staged(t)
		var (
			all      sync.WaitGroup
			mu       sync.Mutex
			recorded []sql.Result
		)
		begun := make(chan struct{}, callers)
		for range callers {
			all.Go(func() {
				for i := range each {
					res, err := r.wrapped.ExecContext(ctx, r.q(increment), 1, 1)
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
		r.wantBalances(len(recorded))
		for _, res := range recorded {
			wantRows(t, res, 1)
		}
		r.wantNoLog()
	})
}

func TestStagedDeliveryConnectionsAreBoundedAndClosed(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		const groups, most = 40, 32
		r, p := newRigBehindProxy(t, db, exactlyOnce)
		r.receiptTable()
		r.account(0, 0)
		r.wrapped.SetMaxIdleConns(0)
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
						if _, err := r.wrapped.ExecContext(ctx, r.q(increment), 1, id+1); err != nil {
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
		ctx, st := staged(t)
		r.stage(ctx, r.wrapped, increment, 1, 1)
		st.Discard()
		eventually(t, "nothing is open", func() bool { return p.Open() == 0 })
		free := r.blockRow(1)
		done := end()
		eventually(t, "all groups are logged", func() bool { return r.left() == 2*groups })
		eventually(t, "all connections are in use", func() bool { return p.Open() >= most })
		if n := p.Open(); n > most {
			t.Errorf("%d connections are in use, want %d at the most", n, most)
		}
		free()
		done()
		r.wantBalances(groups, groups)
		// A stale connection is not met a second time, however many there are.
		p.CutAll()
		end()()
		r.wantBalances(2*groups, 2*groups)
		r.wantNoLog()
		if err := r.wrapped.Close(); err != nil {
			t.Error(err)
		}
		eventually(t, "all connections are closed", func() bool { return p.Open() == 0 })
	})
}
