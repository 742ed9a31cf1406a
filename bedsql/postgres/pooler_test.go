package postgres

import (
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// PgBouncer repeats the client's own spelling of the encoding, but pgx's simple protocol accepts
// only the server's.
func TestSettingsWithUTF8UnderAnotherNameAreUsableBehindAPooler(t *testing.T) {
	t.Parallel()
	target, err := Target(testdb.PgBouncer(t, testdb.Postgres(t)).DSN)
	if err != nil {
		t.Fatal(err)
	}
	for _, settings := range []string{"client_encoding=utf-8;default_query_exec_mode=simple_protocol", "client_encoding=Unicode;default_query_exec_mode=simple_protocol"} {
		as, err := target.With(settings)
		if err != nil || as.Settings != settings {
			t.Fatalf("%q: %q (%v)", settings, as.Settings, err)
		}
		db := sql.OpenDB(as.Connector)
		var got string
		if err := db.QueryRowContext(t.Context(), "SELECT $1::text", "ö").Scan(&got); err != nil || got != "ö" {
			t.Errorf("%q: %q (%v)", settings, got, err)
		}
		_ = db.Close()
	}
}

// A pooler changes sessions without showing the change.
func TestPreparedNameBelongsToOneText(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	for name, change := range map[string]string{
		"gone":            "DEALLOCATE ALL",
		"taken":           "DEALLOCATE ALL; PREPARE " + nameOf("UPDATE stock SET n = n + $1") + " (int) AS UPDATE stock SET n = n + $1",
		"taken and right": "SELECT 1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := receiptful(t, db, "", pgx.QueryExecModeCacheStatement, "CREATE TABLE stock (id INT PRIMARY KEY, n INT NOT NULL)", "INSERT INTO stock VALUES (1, 0)")
			add := call("UPDATE stock SET n = n + $1", int64(1))
			if _, err := e.atomic(receipt("a"), add); err != nil {
				t.Fatal(err)
			}
			must(t, e.c, change)
			if name == "taken" {
				raw(t, e.c, func(dc driver.Conn) { clear(sessionOf(dc.(*stdlib.Conn).Conn()).statements) })
			}
			for _, id := range []string{"b", "c"} {
				if _, err := e.atomic(receipt(id), add); err != nil {
					t.Errorf("receipt %s: %v", id, err)
				}
			}
			var n int
			if err := e.c.QueryRowContext(t.Context(), "SELECT n FROM stock", pgx.QueryExecModeExec).Scan(&n); err != nil || n != 3 {
				t.Errorf("the stock is %d (%v), want 3", n, err)
			}
		})
	}
	if nameOf("a") == nameOf("b") || len(nameOf("a")) != len("bed_")+32 {
		t.Errorf("names are %s and %s", nameOf("a"), nameOf("b"))
	}
}
