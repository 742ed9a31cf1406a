package acceptance

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
	return withParam(db, attempt.SchemaParam, schema)
}

// inItsSchema makes the rig's applications and jobs keep receipts in a schema of
// their own.
func (r *rig) inItsSchema(t *testing.T) (schema string) {
	schema = schemaFor(t, r.db)
	r.db = inSchema(r.db, schema)
	r.wrapped = r.open(r.db.DSN)
	return schema
}

// tables are what a tool for migrations sees.
func (r *rig) tables() (names []string) {
	r.t.Helper()
	rows, err := r.bare.Query(map[string]string{
		testdb.DriverMySQL:    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1",
		testdb.DriverPostgres: "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1",
	}[r.db.Driver])
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			r.t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

func (r *rig) wantReceiptsIn(schema string, want int) {
	r.t.Helper()
	if n := r.count("SELECT COUNT(*) FROM " + schema + ".bed_receipt"); n != want {
		r.t.Errorf("there are %d receipts in %s, want %d", n, schema, want)
	}
}

func TestMigratorDoesNotSeeReceiptsInTheirSchema(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, exactlyOnce)
		schema := r.inItsSchema(t)
		r.account(100)
		r.must(r.wrapped, addOne)
		r.must(r.wrapped, increment, 1, 1)
		tx := r.begin()
		r.must(tx, addOne)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.wrapped.ExecContext(ctx, addOne); err != nil {
			t.Fatal(err)
		}
		if err := soft.End(ctx); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			_, replayed := r.mustSendUnder("k", increment, 1, 1)
			wantReplayed(t, replayed, i > 0)
		}
		for i := range 2 {
			_, tx, key := r.beginUnder("k of a transaction")
			r.must(tx, increment, 1, 1)
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			wantReplayed(t, key.Replayed(), i > 0)
		}
		r.wantBalances(106)
		if got := r.tables(); !slices.Equal(got, []string{"account"}) {
			t.Errorf("a migrator sees %q", got)
		}
		r.wantNoLog()
		if err := r.wrapped.Close(); err != nil { // which erases what nobody needs
			t.Error(err)
		}
		r.wantReceiptsIn(schema, 2)
	})
}

// The job finds the receipt although its own DSN does not name the schema.
func TestEntryNamesItsReceiptSchema(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, exactlyOnce, noSyncRetry)
		plain := r.db
		schema := r.inItsSchema(t)
		r.wrapped = r.openStepwise()
		r.account(100)
		for i, job := range []testdb.DB{plain, r.db} {
			p.CutAfter(testproxy.Text("COMMIT"))
			_, err := r.wrapped.Exec(addOne)
			wantPending(t, err)
			r.wantBalances(101 + i)
			if u := r.wantOneLog(); !strings.Contains(u.Place, schema) {
				t.Errorf("its place is %q", u.Place)
			}
			if report := r.deliverTo(t, r.wantOneLog().DataSource, job.DSN); report.Delivered != 1 {
				t.Errorf("the job: %s, %+v", report, r.logs())
			}
			r.wantBalances(101 + i)
			r.wantNoLog()
		}
		if got := r.tables(); !slices.Equal(got, []string{"account"}) {
			t.Errorf("a migrator sees %q", got)
		}
		r.wantReceiptsIn(schema, 2)
		// They are purged by a job whose DSN does not name it either.
		for _, age := range []time.Duration{time.Hour, 8 * 24 * time.Hour} {
			if _, err := r.bare.Exec(r.q("UPDATE "+schema+".bed_receipt SET creation_time = creation_time - ?, keep_until = keep_until - ?"), age.Milliseconds(), age.Milliseconds()); err != nil {
				t.Fatal(err)
			}
			r.deliverTo(t, targetOf(t, plain).DataSource, plain.DSN)
		}
		r.wantReceiptsIn(schema, 0)
	})
}

// A single round trip is recognized by its text: it inserts the receipt.
func TestOneRoundTripWritePutsReceiptInSchema(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, exactlyOnce, noSyncRetry)
		r.inItsSchema(t)
		r.account(100)
		r.must(r.wrapped, addOne) // finds out what the server can do
		together := p.Count(func(message []byte) bool {
			return testproxy.Text("INSERT INTO")(message) && testproxy.Text("bed_receipt")(message) && testproxy.Text("account")(message)
		})
		for range 3 {
			r.must(r.wrapped, addOne)
		}
		if n := together(); n == 0 && db.Driver == testdb.DriverMySQL && !testdb.MySQLPath() {
			t.Errorf("receipt and write were not sent together")
		}
		r.abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.wantBalances(105)
		if got := r.tables(); !slices.Equal(got, []string{"account"}) {
			t.Errorf("a migrator sees %q", got)
		}
	})
}

// A write to a database never reached before knows no place yet, but its schema. A job without that
// knowledge and a repeated request both go there.
func TestEntryWithoutPlaceNamesItsSchema(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigDown(t, db, exactlyOnce, noSyncRetry)
		plain := r.db
		schema := r.inItsSchema(t)
		r.account(100)
		_, _, err := r.sendUnder("k", increment, 1, 1)
		wantPending(t, err)
		if u := r.wantOneLog(); u.Place != "" {
			t.Fatalf("the place is known: %+v", u)
		}
		p.Accept()
		if report := r.deliverTo(t, r.wantOneLog().DataSource, plain.DSN); report.Delivered != 1 {
			t.Errorf("the job: %s, %+v", report, r.logs())
		}
		_, replayed := r.mustSendUnder("k", increment, 1, 1)
		wantReplayed(t, replayed, true)
		r.wantBalances(101)
		r.wantReceiptsIn(schema, 1)
	})
}

func TestUnusableReceiptSchemaNamesWhatToRun(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, exactlyOnce)
		r.account(100)
		schema := schemaFor(t, db)
		limited, _ := r.withoutCreate()
		pool := r.open(inSchema(limited, schema).DSN)
		for range 4 { // the table; the rights on it
			err := r.fails(pool, addOne)
			var table *dialect.ReceiptTableError
			var rights *dialect.ReceiptRightsError
			switch {
			case errors.As(err, &table):
				for _, statement := range strings.SplitN(table.Statement, ";\n", 2) {
					r.exec(statement)
				}
			case errors.As(err, &rights):
				for statement := range strings.SplitSeq(rights.Grant, ";\n") {
					r.exec(statement)
				}
			default:
				t.Fatalf("%v, want an error with what to run", err)
			}
			if !strings.Contains(err.Error(), strings.ReplaceAll(schema, "_", `\_`)) && !strings.Contains(err.Error(), schema) || errors.Is(err, bedsql.ErrPending) {
				t.Errorf("%v, want a refusal that names the schema", err)
			}
			if _, err := pool.Exec(addOne); err == nil {
				break
			}
		}
		r.must(pool, addOne)
		r.wantBalances(102)
		r.wantNoLog()
		if got := r.tables(); !slices.Equal(got, []string{"account"}) {
			t.Errorf("a migrator sees %q", got)
		}
	})
}

func TestASchemaThatIsDroppedIsMadeAgain(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, exactlyOnce)
		schema := r.inItsSchema(t)
		r.account(100)
		r.must(r.wrapped, addOne)
		r.wantNoLog()
		r.exec("DROP SCHEMA " + schema + map[string]string{testdb.DriverPostgres: " CASCADE"}[db.Driver])
		r.must(r.wrapped, addOne)
		r.wantBalances(102)
	})
}

func TestInvalidReceiptSchemaIsRefusedAtOpen(t *testing.T) {
	t.Parallel()
	log := txlog.NewMemory()
	open := func(driver, dsn string) error {
		r := &rig{t: t, db: testdb.DB{Driver: driver}, cfg: bedsql.Config{Storage: log, Logger: quiet()}}
		pool, err := sql.Open(r.register(), dsn)
		if err == nil {
			_ = pool.Close()
		}
		return err
	}
	newJob := func(driver, dsn string) error {
		tgt, err := target(driver)(dsn)
		if err != nil {
			return err
		}
		job, err := asyncjob.New(log, asyncjob.Targets{"orders": tgt}, asyncjob.Config{Logger: quiet()})
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
