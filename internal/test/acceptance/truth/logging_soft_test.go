package truth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// eachLogging runs f with the two policies under which a write does not wait for
// its log.
func eachLogging(t *testing.T, f func(t *testing.T, db testdb.DB, l bedsql.Logging)) {
	t.Helper()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, l := range map[string]bedsql.Logging{"alongside": bedsql.LogAlongside, "on failure": bedsql.LogOnFailure} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f(t, rig.FreshLike(t, db), l)
			})
		}
	})
}

// In an immediate soft transaction, End reports the logged writes, and the caller gets the errors
// of unlogged ones at once.
func TestEndReportsLogAlongsideAndOnFailure(t *testing.T) {
	t.Parallel()
	eachLogging(t, func(t *testing.T, db testdb.DB, l bedsql.Logging) {
		f := newFatedRig(t, db, rig.NoSyncRetry, func(c *bedsql.Config) { c.Logging = l })
		f.loggingTables()
		for row, c := range []struct {
			entry, write fate
			// thrown is what the caller gets from Exec, and end from End.
			thrown, end callerTold
			refused     bool
		}{
			{entryWritten, applied, result, result, false},
			{entryWritten, refusedByTable, result, own, true},
			{entryWritten, notSent, result, left, false},
			{entryWritten, lostApplied, result, left, false},
			{unwritable, applied, result, result, false},
			{unwritable, refusedByTable, own, result, false},
			{unwritable, notSent, notLogged, result, false},
			{unwritable, lostNotApplied, unknown, result, false},
			{doubtMissing, lostNotApplied, unknown, unknown, false},
		} {
			f.newRow(row + 1)
			ctx, tx := rig.Soft(t)
			f.begin(c.entry, c.write, "UPDATE account")
			_, err := f.Wrapped.ExecContext(ctx, f.table(c.write == refusedByTable)+fmt.Sprint(row+1))
			f.end()
			f.wantAnswer(err, c.thrown, c.entry, c.write)
			err = tx.End(context.Background())
			var refusal *bedsql.RefusedError
			switch {
			case c.refused != errors.As(err, &refusal), (c.end == left) != errors.Is(err, bedsql.ErrPending), (c.end == unknown) != errors.Is(err, bedsql.ErrUnknownOutcome), (c.end == result) != (err == nil):
				t.Errorf("entry %s, write %s: End says %v, want %s", c.entry, c.write, err, c.end)
			case c.refused:
				u := f.WantParked("nosuch")
				if err := f.Storage.Discard(context.Background(), u.ID); err != nil {
					t.Fatal(err)
				}
			case c.end == left && c.entry == entryWritten:
				if report := f.RunOnce(); report.Delivered != 1 {
					t.Errorf("the job: %s", report)
				}
			}
			f.WantNoLog()
		}
	})
}

// A caller whose context ends while its write is under way does not keep the
// entry from being written.
func TestEndedContextLeavesEntryAlongsideAndOnFailure(t *testing.T) {
	t.Parallel()
	eachLogging(t, func(t *testing.T, db testdb.DB, l bedsql.Logging) {
		for _, w := range []loggedWork{loggedWorks[0], loggedWorks[4]} {
			f := newFatedRig(t, rig.FreshLike(t, db), func(c *bedsql.Config) { c.Logging, c.Guarantee = l, bedsql.ExactlyOnce })
			f.loggingTables()
			f.newRow(1)
			if err := w.do(f, context.Background(), 1, false); err != nil {
				t.Fatal(err)
			}
			f.WantNoLog()
			f.newRow(1)
			ctx, cancel := context.WithTimeout(context.Background(), rig.Patience)
			defer cancel()
			f.store.before = func(own context.Context) {
				if l == bedsql.LogAlongside {
					<-ctx.Done() // the entry is written after that
				}
				if own.Err() != nil {
					t.Errorf("%s: the log's context has ended: %v", w.name, own.Err())
				}
				if _, bounded := own.Deadline(); !bounded {
					t.Errorf("%s: the log's context has no end", w.name)
				}
			}
			f.begin(entryWritten, lostNotApplied, w.commitOnce)
			f.whenItBreaks(cancel)
			err := w.do(f, ctx, 1, false)
			f.end()
			f.wantAnswer(err, left, entryWritten, lostNotApplied)
			rig.Eventually(t, "the entry is the job's", func() bool { u := f.WantOneLog(); return !u.Leased })
			if report := f.RunOnce(); report.Delivered != 1 {
				t.Errorf("%s: the job: %s", w.name, report)
			}
			if got := w.effect(f, 1); got != w.once() {
				t.Errorf("%s: its effect is %d", w.name, got)
			}
		}
	})
}

// Staged groups rest on it that nothing is sent before all is logged.
func TestStagedGroupIsAlwaysLoggedFirst(t *testing.T) {
	t.Parallel()
	eachLogging(t, func(t *testing.T, db testdb.DB, l bedsql.Logging) {
		f := newFatedRig(t, db, func(c *bedsql.Config) { c.Logging = l })
		f.loggingTables()
		f.newRow(1)
		ctx, tx, err := bedsql.Begin(bedsql.WithLogging(context.Background(), l), bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		f.mustUnder(ctx, f.table(false)+"1")
		f.begin(unwritable, applied, "")
		err = tx.End(context.Background())
		f.end()
		if !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("End says %v, want ErrNotLogged", err)
		}
		if n := onAccount(f, 1); n != 0 {
			t.Errorf("it was applied %d times", n)
		}
	})
}

// WithLogging is for the writes under its context, and a local transaction has
// that of its BeginTx.
func TestWithLoggingIsForOneContext(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		f := newFatedRig(t, db)
		f.loggingTables()
		f.newRow(1)
		onFailure := bedsql.WithLogging(context.Background(), bedsql.LogOnFailure)
		added := func(do func()) int {
			f.store.begin(entryWritten)
			do()
			n, _ := f.store.added()
			return n
		}
		for what, c := range map[string]struct {
			begin, write context.Context
			adds         int
		}{
			"on failure":               {onFailure, context.Background(), 0},
			"before, as Config has it": {context.Background(), onFailure, 1},
		} {
			if n := added(func() {
				tx, err := f.Wrapped.BeginTx(c.begin, nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := tx.ExecContext(c.write, f.table(false)+"1"); err != nil {
					t.Fatal(err)
				}
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
			}); n != c.adds {
				t.Errorf("a local transaction begun %s was logged %d times", what, n)
			}
			if n := added(func() { f.mustUnder(c.begin, f.table(false)+"1") }); n != c.adds {
				t.Errorf("a write %s was logged %d times", what, n)
			}
		}
	})
}

func (f *fatedRig) mustUnder(ctx context.Context, query string) {
	f.T.Helper()
	if _, err := f.Wrapped.ExecContext(ctx, query); err != nil {
		f.T.Fatal(err)
	}
}

// If COMMIT is refused while its entry is already being written, the entry is gone before the
// caller gets the answer. If that cannot be confirmed, the write is pending with the refusal
// inside.
func TestRefusalAlongsideWaitsUntilItsEntryIsGone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, w := range []loggedWork{loggedWorks[0], loggedWorks[4]} {
			f := newFatedRig(t, rig.FreshLike(t, db), func(c *bedsql.Config) {
				c.Logging, c.LogTimeout = bedsql.LogAlongside, 2*time.Second
				c.Storage = &rig.HookedStorage{Storage: c.Storage}
			})
			hooks := f.store.Storage.(*rig.HookedStorage)
			f.loggingTables()
			f.newRow(1)
			f.begin(entryWritten, refusedByTable, w.commit)
			err := w.do(f, context.Background(), 1, true)
			f.wantAnswer(err, own, entryWritten, refusedByTable)
			if logs := f.Logs(); len(logs) != 0 {
				t.Errorf("%s: the caller got its answer, and the log holds %+v", w.name, logs[0])
			}
			hooks.OnRemove = func([]*entry.Unit) error { return io.ErrClosedPipe }
			f.begin(entryWritten, refusedByTable, w.commit)
			err = w.do(f, context.Background(), 1, true)
			f.end()
			if !errors.Is(err, bedsql.ErrPending) || !rig.HoldsDriversOwn(f.DB, err) {
				t.Errorf("%s: the caller gets %v, want it pending with the refusal", w.name, err)
			}
			if u := f.WantOneLog(); !strings.Contains(fmt.Sprint(u.Statements), "account") {
				t.Errorf("%s: the log holds %+v", w.name, u)
			}
		}
	})
}
