package asyncjob

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

var errFake = answer{dialect.Unknown, "fake: connection lost"}

// always makes every Exec end with err.
func always(err error) *fakeDB {
	return &fakeDB{onExec: func(context.Context, string) error { return err }}
}

func TestADeliveredUnitIsRemoved(t *testing.T) {
	t.Parallel()
	store, db := newStore(t), &fakeDB{}
	add(t, store, "orders", "one", nil)
	r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, brittle()))
	if r.Delivered != 1 || r.DataSources["orders"].Delivered != 1 || r.Assumed != 0 {
		t.Errorf("report: %v", r)
	}
	if n := left(t, store); n != 0 {
		t.Errorf("%d units are left", n)
	}
}

func TestRefusedUnitIsParkedAtOnce(t *testing.T) {
	t.Parallel()
	for _, class := range []dialect.Class{dialect.Refused, dialect.Duplicate} {
		t.Run(class.String(), func(t *testing.T) {
			t.Parallel()
			store, db := newStore(t), always(answer{class, "fake: no such column"})
			u := add(t, store, "orders", "one", nil)
			if r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, brittle())); r.Parked != 1 {
				t.Errorf("report: %v", r)
			}
			got := get(t, store, u)
			if !got.Parked || got.LastError != "fake: no such column" || got.InDoubt {
				t.Errorf("the unit is %+v", got)
			}
		})
	}
}

func TestDuplicateKeyAfterMaybeCountsAsDelivered(t *testing.T) {
	t.Parallel()
	store, db := newStore(t), always(answer{dialect.Duplicate, "fake: duplicate"})
	add(t, store, "orders", "one", func(u *entry.Unit) { u.InDoubt = true })
	cfg, hook := logged()
	cfg.Bus = listener.NewBus(cfg.Logger)
	events := listen(cfg.Bus)
	r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg))
	if r.Delivered != 1 || r.Assumed != 1 || left(t, store) != 0 {
		t.Errorf("report: %v, left %d", r, left(t, store))
	}
	got := events()
	if len(got) != 2 || got[0].Type != listener.BeforeExecute || got[1].Type != listener.ExecuteSuccess || !got[1].Assumed {
		t.Errorf("events: %+v", got)
	}
	flagged := false
	for _, e := range hook.AllEntries() {
		flagged = flagged || e.Data["assumed"] == true && e.Level == logrus.WarnLevel
	}
	if !flagged {
		t.Error("no log line says that the delivery is assumed")
	}
}

// listen collects the events; the returned function stops that and returns them.
func listen(bus *listener.Bus) func() []listener.Event {
	var got []listener.Event
	s := bus.Subscribe(func(ev listener.Event) { got = append(got, ev) })
	return func() []listener.Event {
		s.Close()
		return got
	}
}

func TestRetriesBackOffUntilTheUnitIsParked(t *testing.T) {
	t.Parallel()
	store, db := newStore(t), always(answer{dialect.Retryable, "fake: deadlock"})
	u := add(t, store, "orders", "one", nil)
	cfg := brittle()
	cfg.RetryDelay = time.Minute
	var after []time.Duration
	log := &spy{Storage: store, onRelease: func(_ *entry.Unit, v entry.Verdict) error {
		after = append(after, v.After)
		return nil
	}}
	j := newJob(t, log, Targets{"orders": db.target()}, cfg)
	for try := 1; try <= 3; try++ {
		r := runOnce(t, j)
		got := get(t, store, u)
		if got.Tries != try || got.Parked != (try == 3) || got.LastError != "fake: deadlock" || got.InDoubt {
			t.Errorf("after try %d the unit is %+v, report %v", try, got, r)
		}
		if try == 3 {
			break
		}
		if again := runOnce(t, j); again.Claimed != 0 {
			t.Errorf("a resting unit was claimed: %v", again)
		}
		makeDue(t, store, u)
	}
	if len(after) != 3 || after[0] != time.Minute || after[1] != 2*time.Minute {
		t.Errorf("the rests were %v", after)
	}
	if r := runOnce(t, j); r.Claimed != 0 {
		t.Errorf("a parked unit was claimed: %v", r)
	}
}

// makeDue ends a unit's rest without resetting its tries.
func makeDue(t *testing.T, s *txlog.Memory, u *entry.Unit) {
	t.Helper()
	tries := get(t, s, u).Tries
	if err := s.Retry(t.Context(), u.ID); err != nil {
		t.Fatal(err)
	}
	for range tries {
		got, err := s.Claim(t.Context(), entry.ClaimRequest{DataSource: u.DataSource, Limit: 1, Lease: time.Minute})
		if err != nil || len(got) != 1 {
			t.Fatalf("claimed %d, %v", len(got), err)
		}
		if err := s.Release(t.Context(), got[0], entry.Verdict{CountTry: true}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBrokenConnectionWithLiveServerCountsAsTry(t *testing.T) {
	t.Parallel()
	store, db := newStore(t), always(errFake)
	u := add(t, store, "orders", "one", nil)
	j := newJob(t, store, Targets{"orders": db.target()}, brittle())
	for try := 1; try <= 3; try++ {
		runOnce(t, j)
		if got := get(t, store, u); got.Tries != try || !got.InDoubt || got.Parked != (try == 3) {
			t.Errorf("after try %d the unit is %+v", try, got)
		}
	}
	if db.closes != db.dials {
		t.Errorf("%d of %d connections were dropped; a broken one must not be used again", db.closes, db.dials)
	}
}

func TestUnsentUnitCountsAsTryWithoutDoubt(t *testing.T) {
	t.Parallel()
	store, db := newStore(t), always(answer{dialect.Unreachable, "fake: broke before it was sent"})
	u := add(t, store, "orders", "one", nil)
	r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, brittle()))
	if got := get(t, store, u); got.Tries != 1 || got.InDoubt || r.Failed != 1 {
		t.Errorf("the unit is %+v, report %v", got, r)
	}
}

func TestAnOldDoubtStaysThroughAnAnsweredTry(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"retryable": answer{dialect.Retryable, "fake: busy"}, "refused": answer{dialect.Refused, "fake: no"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, db := newStore(t), always(err)
			u := add(t, store, "orders", "one", func(u *entry.Unit) { u.InDoubt = true })
			runOnce(t, newJob(t, store, Targets{"orders": db.target()}, brittle()))
			if !get(t, store, u).InDoubt {
				t.Error("the earlier attempt of unknown outcome is forgotten")
			}
		})
	}
}

func TestErrBadConnIsNotRetriedAtOnce(t *testing.T) {
	t.Parallel()
	store, db := newStore(t), always(driver.ErrBadConn)
	add(t, store, "orders", "one", nil)
	r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, brittle()))
	if _, sent := db.counts(); sent != 1 || r.Failed != 1 {
		t.Errorf("sent %d times, report %v", sent, r)
	}
}

func TestHangingDeliveryTimesOutAndCountsAsTry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t)
		db := &fakeDB{onExec: func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		u := add(t, store, "orders", "one", nil)
		cfg := brittle()
		cfg.DeliveryTimeout = 200 * time.Millisecond
		r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg))
		got := get(t, store, u)
		if r.Failed != 1 || got.Tries != 1 || !got.InDoubt || !strings.Contains(got.LastError, "no answer within 200ms") {
			t.Errorf("the unit is %+v, report %v", got, r)
		}
	})
}

func TestADriverThatPanicsHarmsOneUnitOnly(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	db := &fakeDB{onExec: func(_ context.Context, q string) error {
		if q == "bad" {
			panic("fake: index out of range")
		}
		return nil
	}}
	bad := add(t, store, "orders", "bad", nil)
	add(t, store, "orders", "good", nil)
	r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, brittle()))
	if got := get(t, store, bad); r.Delivered != 1 || r.Failed != 1 || !got.InDoubt || got.Tries != 1 {
		t.Errorf("the unit is %+v, report %v", got, r)
	}
}

func TestUnitsThatMustNotRunAreParkedUnsent(t *testing.T) {
	t.Parallel()
	unreadable := errors.New("txlog: statement 2 is missing")
	for name, c := range map[string]struct {
		change func(*entry.Unit)
		want   string
	}{
		"not replayable":  {func(u *entry.Unit) { u.NotReplayable = "it read before it wrote" }, "it read before it wrote"},
		"dead parameters": {func(u *entry.Unit) { u.Statements[0].Params = "{not json" }, "statement 0"},
		"unreadable":      {nil, unreadable.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem, db := newStore(t), &fakeDB{}
			u := add(t, mem, "orders", "one", nil)
			// The log returns an entry that a sane writer could not add.
			store := &spy{Storage: mem, onClaim: func() ([]*entry.Unit, error) {
				units, err := mem.Claim(context.Background(), entry.ClaimRequest{DataSource: "orders", Limit: 1, Lease: time.Minute})
				for _, u := range units {
					if c.change != nil {
						c.change(u)
					} else {
						u.Unreadable = unreadable
					}
				}
				return units, err
			}}
			cfg := brittle()
			cfg.Bus = listener.NewBus(cfg.Logger)
			events := listen(cfg.Bus)
			r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg))
			got := get(t, mem, u)
			if r.Parked != 1 || !got.Parked || !strings.Contains(got.LastError, c.want) {
				t.Errorf("the unit is %+v, report %v", got, r)
			}
			if _, sent := db.counts(); sent != 0 {
				t.Errorf("%d statements were sent", sent)
			}
			evs := events()
			if last := evs[len(evs)-1]; last.Type != listener.Parked || last.Err == nil || last.Origin != listener.AsyncJob {
				t.Errorf("the last event is %+v", last)
			}
		})
	}
}

func TestUnitWithOtherSettingsWaitsAndNamesBoth(t *testing.T) {
	t.Parallel()
	store, db := newStore(t), &fakeDB{}
	other := add(t, store, "orders", "other", func(u *entry.Unit) { u.Settings = "loc=Europe/Berlin" })
	add(t, store, "orders", "same", func(u *entry.Unit) { u.Settings = "loc=UTC" })
	target := db.target()
	target.Settings = "loc=UTC"
	cfg, hook := logged()
	r := runOnce(t, newJob(t, store, Targets{"orders": target}, cfg))
	got := get(t, store, other)
	if r.PushedBack != 1 || r.Delivered != 1 || got.Tries != 0 || got.Parked || !got.NextTry.After(time.Now()) {
		t.Errorf("the unit is %+v, report %v", got, r)
	}
	for _, want := range []string{"loc=Europe/Berlin", "loc=UTC", "orders"} {
		if !strings.Contains(got.LastError, want) {
			t.Errorf("the last error does not say %q: %s", want, got.LastError)
		}
	}
	warned := 0
	for _, e := range hook.AllEntries() {
		if e.Level == logrus.WarnLevel && e.Data["entry"] == other.ID {
			warned++
		}
	}
	if warned != 1 {
		t.Errorf("warned %d times", warned)
	}
}

func TestLogLinesHoldNoParameter(t *testing.T) {
	t.Parallel()
	params, err := entry.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: "s3cret"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []error{nil, errFake, answer{dialect.Retryable, "busy"}, answer{dialect.Refused, "no"}} {
		store, db := newStore(t), always(end)
		add(t, store, "orders", "one", func(u *entry.Unit) { u.Statements[0].Params = params })
		cfg, hook := logged()
		runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg))
		for _, e := range hook.AllEntries() {
			if line, _ := e.String(); strings.Contains(line, "s3cret") {
				t.Errorf("a parameter is in the log line %s", line)
			}
		}
	}
}
