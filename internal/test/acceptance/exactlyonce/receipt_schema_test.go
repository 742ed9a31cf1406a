package exactlyonce

import (
	"database/sql"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// schemaFor names a schema for the receipts of a test's database, and drops it at
// the end.
func schemaFor(t *testing.T, db testdb.DB) string {
	if db.Driver == testdb.DriverPostgres {
		return "bed"
	}
	schema, bare := "own_"+db.Name, db.Open(t)
	t.Cleanup(func() {
		if _, err := bare.Exec("DROP DATABASE IF EXISTS " + schema); err != nil {
			t.Error(err)
		}
	})
	return schema
}

func inSchema(db testdb.DB, schema string) testdb.DB {
	return rig.WithParam(db, attempt.SchemaParam, schema)
}

// inItsSchema makes the rig's applications and jobs keep receipts in a schema of
// their own.
func inItsSchema(r *rig.Rig, t *testing.T) (schema string) {
	schema = schemaFor(t, r.DB)
	r.DB = inSchema(r.DB, schema)
	r.Wrapped = r.Open(r.DB.DSN)
	return schema
}

func wantReceiptsIn(r *rig.Rig, schema string, want int) {
	r.T.Helper()
	if n := r.Count("SELECT COUNT(*) FROM " + schema + ".bed_receipt"); n != want {
		r.T.Errorf("there are %d receipts in %s, want %d", n, schema, want)
	}
}

func TestMigratorDoesNotSeeReceiptsInTheirSchema(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		schema := inItsSchema(r, t)
		r.Account(100)
		r.Must(r.Wrapped, rig.AddOne)
		r.Must(r.Wrapped, rig.Increment, 1, 1)
		tx := r.Begin()
		r.Must(tx, rig.AddOne)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Wrapped.ExecContext(ctx, rig.AddOne); err != nil {
			t.Fatal(err)
		}
		if err := soft.End(ctx); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			_, replayed := r.MustSendUnder("k", rig.Increment, 1, 1)
			rig.WantReplayed(t, replayed, i > 0)
		}
		for i := range 2 {
			_, tx, key := r.BeginUnder("k of a transaction")
			r.Must(tx, rig.Increment, 1, 1)
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			rig.WantReplayed(t, key.Replayed(), i > 0)
		}
		r.WantBalances(106)
		if got := r.Tables(); !slices.Equal(got, []string{"account"}) {
			t.Errorf("a migrator sees %q", got)
		}
		r.WantNoLog()
		if err := r.Wrapped.Close(); err != nil { // which erases what nobody needs
			t.Error(err)
		}
		wantReceiptsIn(r, schema, 2)
	})
}

// The job finds the receipt although its own DSN does not name the schema.
func TestEntryNamesItsReceiptSchema(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.ExactlyOnce, rig.NoSyncRetry)
		plain := r.DB
		schema := inItsSchema(r, t)
		r.Wrapped = r.OpenStepwise()
		r.Account(100)
		for i, job := range []testdb.DB{plain, r.DB} {
			p.CutAfter(testproxy.Commit)
			_, err := r.Wrapped.Exec(rig.AddOne)
			rig.WantPending(t, err)
			r.WantBalances(101 + i)
			if u := r.WantOneLog(); !strings.Contains(u.Place, schema) {
				t.Errorf("its place is %q", u.Place)
			}
			if report := r.DeliverTo(t, r.WantOneLog().DataSource, job.DSN); report.Delivered != 1 {
				t.Errorf("the job: %s, %+v", report, r.Logs())
			}
			r.WantBalances(101 + i)
			r.WantNoLog()
		}
		if got := r.Tables(); !slices.Equal(got, []string{"account"}) {
			t.Errorf("a migrator sees %q", got)
		}
		wantReceiptsIn(r, schema, 2)
		// They are purged by a job whose DSN does not name it either.
		for _, age := range []time.Duration{time.Hour, 8 * 24 * time.Hour} {
			if _, err := r.Bare.Exec(r.Q("UPDATE "+schema+".bed_receipt SET creation_time = creation_time - ?, keep_until = keep_until - ?"), age.Milliseconds(), age.Milliseconds()); err != nil {
				t.Fatal(err)
			}
			r.DeliverTo(t, rig.TargetOf(t, plain).DataSource, plain.DSN)
		}
		wantReceiptsIn(r, schema, 0)
	})
}

// A single round trip is recognized by its text: it inserts the receipt.
func TestOneRoundTripWritePutsReceiptInSchema(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.ExactlyOnce, rig.NoSyncRetry)
		inItsSchema(r, t)
		r.Account(100)
		r.Must(r.Wrapped, rig.AddOne) // finds out what the server can do
		together := p.Count(func(message []byte) bool {
			return testproxy.Text("INSERT INTO")(message) && testproxy.Text("bed_receipt")(message) && testproxy.Text("account")(message)
		})
		for range 3 {
			r.Must(r.Wrapped, rig.AddOne)
		}
		if n := together(); n == 0 && db.Driver == testdb.DriverMySQL && !testdb.MySQLPath() {
			t.Errorf("receipt and write were not sent together")
		}
		r.Abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.WantBalances(105)
		if got := r.Tables(); !slices.Equal(got, []string{"account"}) {
			t.Errorf("a migrator sees %q", got)
		}
	})
}

// A write to a database never reached before knows no place yet, but its schema. A job without that
// knowledge and a repeated request both go there.
func TestEntryWithoutPlaceNamesItsSchema(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewDown(t, db, rig.ExactlyOnce, rig.NoSyncRetry)
		plain := r.DB
		schema := inItsSchema(r, t)
		r.Account(100)
		_, _, err := r.SendUnder("k", rig.Increment, 1, 1)
		rig.WantPending(t, err)
		if u := r.WantOneLog(); u.Place != "" {
			t.Fatalf("the place is known: %+v", u)
		}
		p.Accept()
		if report := r.DeliverTo(t, r.WantOneLog().DataSource, plain.DSN); report.Delivered != 1 {
			t.Errorf("the job: %s, %+v", report, r.Logs())
		}
		_, replayed := r.MustSendUnder("k", rig.Increment, 1, 1)
		rig.WantReplayed(t, replayed, true)
		r.WantBalances(101)
		wantReceiptsIn(r, schema, 1)
	})
}

func TestUnusableReceiptSchemaNamesWhatToRun(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.Account(100)
		schema := schemaFor(t, db)
		limited, _ := r.WithoutCreate()
		pool := r.Open(inSchema(limited, schema).DSN)
		for range 4 { // the table; the rights on it
			err := r.Fails(pool, rig.AddOne)
			var table *dialect.ReceiptTableError
			var rights *dialect.ReceiptRightsError
			switch {
			case errors.As(err, &table):
				for _, statement := range strings.SplitN(table.Statement, ";\n", 2) {
					r.Exec(statement)
				}
			case errors.As(err, &rights):
				for statement := range strings.SplitSeq(rights.Grant, ";\n") {
					r.Exec(statement)
				}
			default:
				t.Fatalf("%v, want an error with what to run", err)
			}
			if !strings.Contains(err.Error(), strings.ReplaceAll(schema, "_", `\_`)) && !strings.Contains(err.Error(), schema) || errors.Is(err, bedsql.ErrPending) {
				t.Errorf("%v, want a refusal that names the schema", err)
			}
			if _, err := pool.Exec(rig.AddOne); err == nil {
				break
			}
		}
		r.Must(pool, rig.AddOne)
		r.WantBalances(102)
		r.WantNoLog()
		if got := r.Tables(); !slices.Equal(got, []string{"account"}) {
			t.Errorf("a migrator sees %q", got)
		}
	})
}

func TestASchemaThatIsDroppedIsMadeAgain(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		schema := inItsSchema(r, t)
		r.Account(100)
		r.Must(r.Wrapped, rig.AddOne)
		r.WantNoLog()
		r.Exec("DROP SCHEMA " + schema + map[string]string{testdb.DriverPostgres: " CASCADE"}[db.Driver])
		r.Must(r.Wrapped, rig.AddOne)
		r.WantBalances(102)
	})
}

func TestInvalidReceiptSchemaIsRefusedAtOpen(t *testing.T) {
	t.Parallel()
	log := txlog.NewMemory()
	open := func(driver, dsn string) error {
		r := &rig.Rig{T: t, DB: testdb.DB{Driver: driver}, Cfg: bedsql.Config{Storage: log, Logger: rig.Quiet()}}
		pool, err := sql.Open(r.Register(), dsn)
		if err == nil {
			_ = pool.Close()
		}
		return err
	}
	newJob := func(driver, dsn string) error {
		tgt, err := rig.Target(driver)(dsn)
		if err != nil {
			return err
		}
		job, err := asyncjob.New(log, asyncjob.Targets{"orders": tgt}, asyncjob.Config{Logger: rig.Quiet()})
		if err == nil {
			_ = job.Close()
		}
		return err
	}
	if err := open(testdb.DriverSQLite, inSchema(testdb.SQLite(t), "bed").DSN); err == nil || !strings.Contains(err.Error(), attempt.SchemaParam) || !strings.Contains(err.Error(), "SQLite") {
		t.Errorf("SQLite: %v", err)
	}
	for driver, dsn := range map[string]string{testdb.DriverMySQL: "root@tcp(127.0.0.1:1)/orders?bedReceiptSchema=", testdb.DriverPostgres: "postgres://127.0.0.1:1/orders?bedReceiptSchema="} {
		for _, bad := range []string{"", " ", "Bed", "b-d", "1bed", "bed.x", "`; DROP TABLE account; --", `"`, strings.Repeat("b", 64)} {
			escaped := strings.ReplaceAll(url.QueryEscape(bad), "+", "%20")
			if err := open(driver, dsn+escaped); err == nil || !strings.Contains(err.Error(), attempt.SchemaParam) {
				t.Errorf("%s takes %q: %v", driver, bad, err)
			}
			if err := newJob(driver, dsn+escaped); err == nil || !strings.Contains(err.Error(), attempt.SchemaParam) {
				t.Errorf("a job on %s takes %q: %v", driver, bad, err)
			}
		}
		if err := errors.Join(open(driver, dsn+"bed_1"), newJob(driver, dsn+"bed_1")); err != nil {
			t.Errorf("%s: %v", driver, err)
		}
	}
}
