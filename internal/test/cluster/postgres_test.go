package cluster

import (
	"testing"

	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/internal/test/testdb"
)

// pair starts a primary with its synchronous standby, and makes a database of it.
func pair(t *testing.T) (primary, standby *testdb.Server, db testdb.DB) {
	t.Helper()
	primary = testdb.PrivatePostgres(t)
	db = primary.DB(t)
	standby = primary.Standby(t)
	return primary, standby, db
}

func TestPromotedStandbyHasAllAnsweredWrites(t *testing.T) {
	primary, standby, db := pair(t)
	logPrimary, logStandby := primary, standby
	logDB := primary.DB(t)
	if full { // a log of its own, which is promoted at another moment
		logPrimary, logStandby, logDB = pair(t)
	}
	either := place{testdb.OnEither(db, primary.Addr(), standby.Addr()), testdb.OnEither(logDB, logPrimary.Addr(), logStandby.Addr())}
	w := newWorld(t, either.target.Open(t), []place{either, either, either})
	w.storm(func() {
		pause()
		primary.Kill()
		pause()
		standby.Promote()
		pause()
		if full {
			logPrimary.Kill()
			pause()
			logStandby.Promote()
			pause()
		}
	})
}

func TestStandbyIsNotUpBehindPgBouncer(t *testing.T) {
	primary, standby, db := pair(t)
	behind := db.Via(standby.Addr())
	for name, c := range map[string]struct {
		db testdb.DB
		up bool
	}{
		"the primary": {db, true}, "the primary behind PgBouncer": {testdb.PgBouncer(t, db), true},
		"the standby": {behind, false}, "the standby behind PgBouncer": {testdb.PgBouncer(t, behind), false},
	} {
		if err := takesWrites(t, named(c.db), postgres.Target); (err == nil) != c.up {
			t.Errorf("%s: %v", name, err)
		}
	}
	primary.Kill()
	standby.Promote()
	if err := takesWrites(t, named(behind), postgres.Target); err != nil {
		t.Errorf("the promoted standby: %v", err)
	}
}

func TestPromotedStandbyBehindPgBouncerHasAllWrites(t *testing.T) {
	if !full {
		t.Log("runs by make test-cluster")
		return
	}
	primary, standby, db := pair(t)
	logDB := testdb.Postgres(t)
	// One of the two poolers leads to a writable server.
	first, second := testdb.PgBouncer(t, db), testdb.PgBouncer(t, db.Via(standby.Addr()))
	either := place{testdb.OnEither(db, first.Addr(), second.Addr()), testdb.PgBouncer(t, logDB)}
	w := newWorld(t, either.target.Open(t), []place{either, either, either})
	w.storm(func() {
		pause()
		primary.Kill()
		pause()
		standby.Promote()
		pause()
	})
}
