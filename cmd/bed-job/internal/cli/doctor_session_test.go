package cli

import (
	"strings"
	"testing"
	"time"

	bedpostgres "github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// Entries name their application's session; doctor opens such a session.
func TestDoctorFindsASessionTheJobCannotHave(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: needs a postgres server")
	}
	in := install(t, testdb.Postgres(t), map[string]testdb.DB{"orders": testdb.Postgres(t)})
	to, err := bedpostgres.Target(in.sources["orders"].DSN)
	if err != nil {
		t.Fatal(err)
	}
	conn, facts, err := target.Dial(t.Context(), &to)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	st, err := txlog.Open(t.Context(), in.log.Driver, in.log.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	add := func(session, account string) *entry.Unit {
		u := &entry.Unit{ID: entry.NewID(), DataSource: "orders", Settings: to.Settings, Session: session, Account: account, Statements: []entry.Statement{{SQL: "UPDATE account SET balance = 1"}}}
		if err := st.Add(t.Context(), time.Minute, u); err != nil {
			t.Fatal(err)
		}
		return u
	}
	add(facts.Session, "")
	add("intervalstyle=iso_8601;"+facts.Session, "") // the job can have it
	add("", to.Account)
	in.right()
	another := add("", "another")
	in.wrong("session", "whose DSN has that account")
	if err := st.Remove(t.Context(), another); err != nil {
		t.Fatal(err)
	}
	add(strings.Replace(facts.Session, "timezone=", "timezone=Mars/", 1), "")
	in.wrong("session", "settings of the application's")
}
