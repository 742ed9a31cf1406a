package asyncjob

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener/delivery"
)

// settable is a target with any settings except "settings=bad".
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

func TestSessionsFollowSettingsAndTheirPoolsAreBounded(t *testing.T) {
	t.Parallel()
	const sets = 3 * maxSessions
	store, db := newStore(t), &fakeDB{}
	for i := range sets {
		add(t, store, "orders", "w", func(u *entry.Unit) { u.Settings = fmt.Sprint("settings=", i) })
	}
	bad := add(t, store, "orders", "w", func(u *entry.Unit) { u.Settings = "settings=bad" })
	j := newJob(t, store, Targets{"orders": settable(db.target())}, brittle())
	if r := runOnce(t, j); r.Delivered != sets || r.PushedBack != 1 {
		t.Errorf("report %v, want %d delivered and 1 pushed back", r, sets)
	}
	if u := get(t, store, bad); !strings.Contains(u.LastError, "no such parameter") || u.Tries != 0 || u.Parked {
		t.Errorf("got %+v, want its error and no try", u)
	}
	list := j.sources["orders"].others.list
	if len(list) > maxSessions {
		t.Errorf("%d pools are kept, want at most %d", len(list), maxSessions)
	}
	for _, s := range list {
		if s.users != 0 {
			t.Errorf("the session with %s has %d users", s.Settings, s.users)
		}
	}
}

func TestSessionInUseIsNotEvicted(t *testing.T) {
	t.Parallel()
	j := newJob(t, newStore(t), Targets{"orders": settable((&fakeDB{}).target())}, brittle())
	s := j.sources["orders"]
	used, leave, err := s.session(&entry.Unit{Settings: "settings=used"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * maxSessions {
		if err := s.accepts(&entry.Unit{Settings: fmt.Sprint("settings=", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := used.pool.DB().PingContext(t.Context()); err != nil {
		t.Errorf("its pool: %v", err)
	}
	if again, leave, err := s.session(&entry.Unit{Settings: "settings=used"}); err != nil || again != used {
		t.Errorf("it is made anew (%v)", err)
	} else {
		leave()
	}
	leave()
}
