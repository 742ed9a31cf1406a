package postgres

import (
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func TestLogIsOpenedAndLocated(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	log, err := txlog.Open(t.Context(), Name, db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	target, err := Target(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	if log.Driver() != Name || log.Location() != target.DataSource {
		t.Errorf("the log is in %s at %s, the target at %s", log.Driver(), log.Location(), target.DataSource)
	}
	if _, err := log.Stats(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := txlog.Open(t.Context(), Name, "no equals sign"); err == nil {
		t.Error("a DSN that cannot be read was accepted")
	}
}
