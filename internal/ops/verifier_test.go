package ops_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Unqualified names of two accounts lead to different schemas. The receipt at the place of the
// application's sessions counts, not one at the operator's.
func TestVerdictConcernsTheEntrysSession(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	admin, role := db.Open(t), "app_"+db.Name
	for _, text := range []string{"CREATE ROLE " + role + " LOGIN PASSWORD 'secret'", "CREATE SCHEMA " + role + " AUTHORIZATION " + role, "GRANT ALL ON SCHEMA public TO " + role} {
		_, err := admin.Exec(text)
		must(t, err)
	}
	t.Cleanup(func() { _, _ = admin.Exec("DROP OWNED BY " + role + " CASCADE; DROP ROLE " + role) })
	at, err := url.Parse(db.DSN)
	must(t, err)
	at.User = url.UserPassword(role, "secret")
	own, err := postgres.Target(db.DSN)
	must(t, err)
	app, err := postgres.Target(at.String())
	must(t, err)

	conn, facts, err := target.Dial(t.Context(), &app)
	must(t, err)
	defer conn.Close()
	public, _, err := target.Dial(t.Context(), &own)
	must(t, err)
	defer public.Close()
	receipts := attempt.Receipts{LogIdentity: "log", Retention: time.Hour, KeyRetention: time.Hour}
	must(t, attempt.EnsureReceipts(t.Context(), app.Dialect, conn, receipts))
	must(t, attempt.EnsureReceipts(t.Context(), own.Dialect, public, receipts))
	_, err = admin.Exec("CREATE TABLE public.w (n INT); CREATE TABLE " + role + ".w (n INT); ALTER TABLE " + role + ".w OWNER TO " + role)
	must(t, err)
	unit := func(receipt string) *entry.Unit {
		u := &entry.Unit{ID: entry.NewID(), DataSource: "shop", Settings: app.Settings, Session: facts.Session, Statements: []entry.Statement{{SQL: "INSERT INTO w VALUES (1)"}}}
		if u.Receipt = receipt; receipt == "" {
			u.Receipt = u.ID
		}
		return u
	}
	there, elsewhere, nowhere := unit(""), unit("k:order-7"), unit("")
	nowhere.Session = "search_path=nobodys_schema;role=nobody_" + db.Name
	if out := attempt.Replay(t.Context(), app.Dialect, conn, there, receipts); !out.Delivered() {
		t.Fatal(out.Err)
	}
	if out := attempt.Replay(t.Context(), own.Dialect, public, elsewhere, receipts); !out.Delivered() {
		t.Fatal(out.Err)
	}
	for u, want := range map[*entry.Unit]ops.Verdict{there: ops.Applied, elsewhere: ops.NotApplied, nowhere: ops.CannotTell} {
		log := txlog.NewMemory()
		must(t, log.Add(t.Context(), time.Minute, u))
		v := ops.NewVerifier(log.Missing, ops.Config{Targets: map[string]delivery.Target{"shop": own}})
		defer v.Close()
		judged, err := v.Judge(t.Context(), []*entry.Unit{u})
		must(t, err)
		if judged[0].Verdict != want {
			t.Errorf("%s in %q: %+v, want %q", u.Receipt, u.Session, judged[0], want)
		}
	}
}
