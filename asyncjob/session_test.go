package asyncjob

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// settable is a target that can be given any settings but "settings=bad".
func settable(t delivery.Target) delivery.Target {
	t.With = func(settings string) (delivery.Target, error) {
		if settings == "settings=bad" {
			return delivery.Target{}, errors.New("no such parameter")
		}
		to := t
		to.Settings = settings
		return to, nil
	}
	return t
}

func TestUnitsAreDeliveredInSessionsWithTheirSettingsWhosePoolsAreBounded(t *testing.T) {
	t.Parallel()
	const sets = 3 * maxSessions
	store, db := newStore(t), &fakeDB{}
	for i := range sets {
		add(t, store, "orders", "w", func(u *txlog.Unit) { u.Settings = fmt.Sprint("settings=", i) })
	}
	bad := add(t, store, "orders", "w", func(u *txlog.Unit) { u.Settings = "settings=bad" })
	older := add(t, store, "orders", "w", func(u *txlog.Unit) { u.Settings, u.SettingsOlder = "settings=2", true })
	same := add(t, store, "orders", "w", func(u *txlog.Unit) { u.Settings, u.SettingsOlder = "seen=once", true })
	target := settable(db.target())
	target.OlderSettings = "seen=once"
	j := newJob(t, store, Targets{"orders": target}, brittle())
	if r := runOnce(t, j); r.Delivered != sets+1 || r.PushedBack != 2 {
		t.Errorf("report %v, want %d delivered and 2 pushed back", r, sets+1)
	}
	for unit, want := range map[*txlog.Unit]string{bad: "no such parameter", older: "an older version wrote them"} {
		if u := get(t, store, unit); !strings.Contains(u.LastError, want) || u.Tries != 0 || u.Parked {
			t.Errorf("got %+v, want an error with %q and no try", u, want)
		}
	}
	if u, err := store.Get(t.Context(), same.ID); err == nil {
		t.Errorf("%+v has the settings that its version saw, and is left", u)
	}
	list := j.sources["orders"].others.list
	if len(list) > maxSessions {
		t.Errorf("%d pools are kept, want at most %d", len(list), maxSessions)
	}
	for _, s := range list {
		if s.users != 0 {
			t.Errorf("the session with %s has %d users", s.target.Settings, s.users)
		}
	}
}

func TestASessionInUseIsNotClosedForAnother(t *testing.T) {
	t.Parallel()
	j := newJob(t, newStore(t), Targets{"orders": settable((&fakeDB{}).target())}, brittle())
	s := j.sources["orders"]
	used, leave, err := s.session(&txlog.Unit{Settings: "settings=used"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * maxSessions {
		if err := s.accepts(&txlog.Unit{Settings: fmt.Sprint("settings=", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := used.pool.PingContext(t.Context()); err != nil {
		t.Errorf("its pool: %v", err)
	}
	if again, leave, err := s.session(&txlog.Unit{Settings: "settings=used"}); err != nil || again != used {
		t.Errorf("it is made anew (%v)", err)
	} else {
		leave()
	}
	leave()
}
