package truth

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// callerTold is what a caller gets.
type callerTold string

const (
	result    callerTold = "the Result"
	own       callerTold = "the driver's error"
	left      callerTold = "ErrPending"
	notLogged callerTold = "ErrNotLogged"
	unknown   callerTold = "ErrUnknownOutcome"
)

// loggingRule is the rule of truth of LogAlongside and LogOnFailure, row by row. Each row has the
// caller's result under both; if the guarantees differ, AtLeastOnce comes before ExactlyOnce.
var loggingRule = []struct {
	entry, write          fate
	alongside, alongsideX callerTold
	onFailure, onFailureX callerTold
}{
	{entryWritten, applied, result, result, result, result},
	{entryWritten, refusedByTable, own, own, own, own},
	{entryWritten, notSent, left, left, left, left},
	{entryWritten, lostApplied, left, left, left, left},
	{entryWritten, lostNotApplied, left, left, left, left},
	{unwritable, applied, result, result, result, result},
	{unwritable, refusedByTable, own, own, own, own},
	{unwritable, notSent, notLogged, notLogged, notLogged, notLogged},
	{unwritable, lostApplied, unknown, result, unknown, result},
	{unwritable, lostNotApplied, unknown, notLogged, unknown, notLogged},
	{unwritable, lostAway, unknown, unknown, unknown, unknown},
	{doubtThere, applied, result, result, result, result},
	{doubtThere, refusedByTable, left, own, own, own}, // left: it is parked, for its INSERT may come again
	{doubtThere, notSent, left, left, left, left},
	{doubtThere, lostApplied, left, left, left, left},
	{doubtThere, lostNotApplied, left, left, left, left},
	{doubtMissing, refusedByTable, unknown, unknown, own, own},
	{doubtMissing, notSent, unknown, unknown, unknown, unknown},
	{doubtMissing, lostApplied, unknown, unknown, unknown, unknown},
	{doubtMissing, lostNotApplied, unknown, unknown, unknown, unknown},
	{doubtLate, applied, result, result, result, result},
}

func TestRuleHoldsAlongsideAndOnFailure(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, logging := range []bedsql.Logging{bedsql.LogAlongside, bedsql.LogOnFailure} {
			for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
				name := map[bedsql.Logging]string{bedsql.LogAlongside: "alongside", bedsql.LogOnFailure: "on failure"}[logging] +
					map[bedsql.Guarantee]string{bedsql.AtLeastOnce: ", at least once", bedsql.ExactlyOnce: ", exactly once"}[guarantee]
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					f := newFatedRig(t, rig.FreshLike(t, db), rig.NoSyncRetry, func(c *bedsql.Config) { c.Logging, c.Guarantee = logging, guarantee })
					f.loggingTables()
					row := 0
					for _, w := range loggedWorks {
						if w.onlyOnce && guarantee != bedsql.ExactlyOnce || w.name == "RETURNING" && !f.Returns(t) {
							continue
						}
						// After this, a connector knows its target.
						row++
						f.newRow(row)
						if err := w.do(f, context.Background(), row, false); err != nil {
							t.Fatalf("%s: %v", w.name, err)
						}
						f.WantNoLog()
						for _, c := range loggingRule {
							row++
							f.newRow(row)
							want := c.alongside
							switch {
							case logging == bedsql.LogOnFailure && guarantee == bedsql.ExactlyOnce:
								want = c.onFailureX
							case logging == bedsql.LogOnFailure:
								want = c.onFailure
							case guarantee == bedsql.ExactlyOnce:
								want = c.alongsideX
							}
							// Leftovers of one would count for the next.
							if !t.Run(fmt.Sprintf("%s, entry %s, write %s", w.name, c.entry, c.write), func(t *testing.T) {
								was := f.T
								f.T = t
								defer func() { f.T = was }()
								f.judgeLogging(&w, c.entry, c.write, want, row)
							}) {
								return
							}
						}
					}
				})
			}
		}
	})
}

func (f *fatedRig) loggingTables() {
	f.T.Helper()
	f.Account(0)
	f.Exec("CREATE TABLE note (id INT PRIMARY KEY)", "INSERT INTO note VALUES (0)")
	if f.DB.Driver != testdb.DriverMySQL {
		f.Exec("CREATE TABLE late (id INT PRIMARY KEY, account_id INT REFERENCES account (id) DEFERRABLE INITIALLY DEFERRED)")
	}
}

// newRow makes a row of its own for a piece of work.
func (f *fatedRig) newRow(row int) {
	f.T.Helper()
	f.Exec("DELETE FROM account WHERE id = "+fmt.Sprint(row), fmt.Sprintf("INSERT INTO account VALUES (%d, 0)", row))
}

// judgeLogging runs a piece of work under a fate and checks the caller's result, the log's content
// and the final state.
func (f *fatedRig) judgeLogging(w *loggedWork, entry, write fate, want callerTold, row int) {
	t := f.T
	t.Helper()
	exactly := f.Cfg.Guarantee == bedsql.ExactlyOnce
	point := w.commit
	if exactly {
		point = w.commitOnce
	}
	before := f.tally()
	f.begin(entry, write, point)
	err := w.do(f, context.Background(), row, write == refusedByTable)
	adds, last := f.store.added()
	f.end()

	f.wantAnswer(err, want, entry, write)
	counted := want
	if want == own && bedsql.OutcomeOf(err) == bedsql.OutcomeNotAccepted { // a COMMIT that may succeed later
		counted = notLogged
	}
	if after := f.tally(); after[counted] != before[counted]+1 {
		t.Errorf("counted were %v before and %v after, want one more: %s", before, after, counted)
	}
	alongside := f.Cfg.Logging == bedsql.LogAlongside
	wantAdds := 1
	if !alongside && (write == applied || write == refusedByTable) {
		wantAdds = 0
	}
	if adds != wantAdds {
		t.Errorf("the log was written %d times, want %d", adds, wantAdds)
	}
	effect := 0
	if write == applied || write == lostApplied {
		effect = w.once()
	}
	if got := w.effect(f, row); got != effect {
		t.Errorf("its effect is %d, want %d", got, effect)
	}
	if entry == doubtLate && alongside {
		late := last
		if err := f.Storage.Add(context.Background(), 30*time.Second, &late); err != nil {
			t.Fatal(err)
		}
	}
	if want != left {
		rig.Eventually(t, "the log is empty", func() bool { return len(f.Logs()) == 0 })
		return
	}
	u := f.WantOneLog()
	if u.InDoubt != (write != notSent || entry == doubtThere && exactly) || u.Leased || u.Parked != (write == refusedByTable) {
		t.Errorf("the log holds %+v", u)
	}
	if u.Parked {
		if err := f.Storage.Discard(context.Background(), u.ID); err != nil {
			t.Error(err)
		}
		return
	}
	if report := f.RunOnce(); report.Delivered != 1 {
		t.Errorf("the job: %s", report)
	}
	effect = w.once()
	if write == lostApplied && !exactly {
		effect = w.again
	}
	if got := w.effect(f, row); got != effect {
		t.Errorf("after the job its effect is %d, want %d", got, effect)
	}
	f.WantNoLog()
}

func (f *fatedRig) wantAnswer(err error, want callerTold, entry, write fate) {
	t := f.T
	t.Helper()
	got := own
	switch {
	case err == nil:
		got = result
	case errors.Is(err, bedsql.ErrPending):
		got = left
	case errors.Is(err, bedsql.ErrNotLogged):
		got = notLogged
	case errors.Is(err, bedsql.ErrUnknownOutcome):
		got = unknown
	}
	if got != want {
		t.Fatalf("the caller gets %s (%v), want %s", got, err, want)
	}
	switch {
	case err == nil:
		return
	case want == own && !rig.IsDriversOwn(f.DB, err):
		t.Errorf("the error is %v (%T), want the driver's own", err, err)
	case want != own && errors.Is(err, driver.ErrBadConn):
		t.Errorf("%v would have database/sql run it again", err)
	case (want == notLogged || want == unknown) && !errors.Is(err, rig.ErrLogDown):
		t.Errorf("the error %v does not hold the log's", err)
	case want == unknown && entry == unwritable && !errors.Is(err, io.ErrUnexpectedEOF):
		t.Errorf("the error %v does not hold the attempt's", err)
	case (want == unknown && entry != unwritable) != errors.Is(err, txlog.ErrInDoubt):
		t.Errorf("the error %v does not tell whether the log is in doubt", err)
	case want != own && write == refusedByTable && !rig.HoldsDriversOwn(f.DB, err):
		t.Errorf("the error %v does not hold the refusal", err)
	}
}

// tally is what was counted.
func (f *fatedRig) tally() map[callerTold]uint64 {
	c := f.Counters
	return map[callerTold]uint64{
		result: c.Delivered.Load(), own: c.Refused.Load(), left: c.Pending.Load(),
		notLogged: c.NotLogged.Load(), unknown: c.UnknownOutcome.Load(),
	}
}
