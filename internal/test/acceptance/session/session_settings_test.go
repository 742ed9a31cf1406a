package session

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/listener/delivery"
)

// tenants is an application whose hooks give each connection the tenant of its context. A trigger
// of the table note keeps the tenant of each row.
type tenants struct {
	*rig.Rig
	p *testproxy.Proxy
	// off stops the hooks.
	off atomic.Bool
	// target has the hooks.
	target delivery.Target
}

type tenantKey struct{}

// as is a context of a tenant.
func as(tenant string) context.Context {
	return context.WithValue(context.Background(), tenantKey{}, tenant)
}

// variable is the name of the tenant's setting.
var variable = map[string]string{testdb.DriverPostgres: "app.tenant_id", testdb.DriverMySQL: "@tenant"}

func newTenants(t *testing.T, db testdb.DB, change ...func(*bedsql.Config)) *tenants {
	t.Helper()
	name := variable[db.Driver]
	r, p := rig.NewBehindProxy(t, db, append(change, func(c *bedsql.Config) { c.SessionSettings = []string{name} })...)
	a := &tenants{Rig: r, p: p, target: rig.TargetOf(t, r.DB)}
	if db.Driver == testdb.DriverMySQL {
		r.Exec("CREATE TABLE note (id INT PRIMARY KEY, tenant VARCHAR(40))", "CREATE TRIGGER of BEFORE INSERT ON note FOR EACH ROW SET NEW.tenant = @tenant")
		a.target.Connector = &hooked{a.target.Connector, a.set}
	} else {
		r.Exec("CREATE TABLE note (id INT PRIMARY KEY, tenant TEXT)",
			"CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.tenant = current_setting(''app.tenant_id'', true); RETURN NEW; END'",
			"CREATE TRIGGER of BEFORE INSERT ON note FOR EACH ROW EXECUTE FUNCTION stamp()")
		cfg, err := pgx.ParseConfig(r.DB.DSN)
		if err != nil {
			t.Fatal(err)
		}
		hook := func(ctx context.Context, conn *pgx.Conn) error {
			return a.set(ctx, func(tenant string) error {
				_, err := conn.Exec(ctx, "SELECT set_config('app.tenant_id', $1, false)", tenant)
				return err
			})
		}
		a.target = postgres.TargetOf(cfg, a.target.DataSource, stdlib.OptionAfterConnect(hook), stdlib.OptionResetSession(hook))
	}
	a.Wrapped = r.OpenTarget(a.target)
	return a
}

func (a *tenants) set(ctx context.Context, do func(string) error) error {
	if tenant, ok := ctx.Value(tenantKey{}).(string); ok && !a.off.Load() {
		return do(tenant)
	}
	return nil
}

// hooked runs set on each connection of MySQL after its dial, and before each reuse.
type hooked struct {
	driver.Connector
	set func(context.Context, func(string) error) error
}

func (h *hooked) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := h.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	c := &hookedConn{conn, h}
	return c, c.hook(ctx)
}

type hookedConn struct {
	driver.Conn
	h *hooked
}

func (c *hookedConn) hook(ctx context.Context) error {
	return c.h.set(ctx, func(tenant string) error {
		_, _, err := attempt.Exec(ctx, c.Conn, fmt.Sprintf("SET @tenant = CONVERT(X'%X' USING utf8mb4)", tenant), nil)
		return err
	})
}

func (c *hookedConn) ResetSession(ctx context.Context) error {
	if err := c.Conn.(driver.SessionResetter).ResetSession(ctx); err != nil {
		return err
	}
	return c.hook(ctx)
}

func (c *hookedConn) IsValid() bool { return c.Conn.(driver.Validator).IsValid() }

func (c *hookedConn) CheckNamedValue(nv *driver.NamedValue) error {
	return c.Conn.(driver.NamedValueChecker).CheckNamedValue(nv)
}

func (c *hookedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	return attempt.BeginTx(ctx, c.Conn, opts)
}

func (c *hookedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c *hookedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

// note is the write of a row.
func note(id int) string { return fmt.Sprintf("INSERT INTO note (id) VALUES (%d)", id) }

// want checks the tenants of the rows, by their ids.
func (a *tenants) want(tenants ...string) {
	a.T.Helper()
	rows, err := a.Bare.Query("SELECT COALESCE(tenant, 'none') FROM note ORDER BY id")
	if err != nil {
		a.T.Fatal(err)
	}
	var got []string
	for _, row := range rig.Content(a.T, rows) {
		switch v := row[0].(type) {
		case []byte:
			got = append(got, string(v))
		default:
			got = append(got, fmt.Sprint(v))
		}
	}
	if strings.Join(got, "|") != strings.Join(tenants, "|") {
		a.T.Errorf("the rows belong to %q, want %q", got, tenants)
	}
}

// odd is a tenant with special characters.
const odd = `O'Brien;\ = %3B "ü"`

// ways are the ways of writing a row; each gets the cut that leaves it to a retry or the job.
var ways = map[string]func(a *tenants, ctx context.Context, id int) error{
	"single": func(a *tenants, ctx context.Context, id int) error {
		_, err := a.Wrapped.ExecContext(ctx, note(id))
		return err
	},
	"local transaction": func(a *tenants, ctx context.Context, id int) error {
		tx, err := a.Wrapped.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.Exec(note(id)); err != nil {
			return err
		}
		return tx.Commit()
	},
	"recorded in a transaction": func(a *tenants, ctx context.Context, id int) error {
		home := *a.Rig
		home.Cfg.SessionSettings = nil
		tx, err := home.Open(a.LogDB.DSN).Begin()
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		ctx, st, err := bedsql.Begin(ctx, bedsql.WithTx(tx))
		if err != nil {
			return err
		}
		if _, err := a.Wrapped.ExecContext(ctx, note(id)); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		return st.End(ctx)
	},
	"under a key": func(a *tenants, ctx context.Context, id int) error {
		ctx, _ = bedsql.WithIdempotencyKey(ctx, fmt.Sprint("note ", id))
		_, err := a.Wrapped.ExecContext(ctx, note(id))
		return err
	},
	"staged": func(a *tenants, ctx context.Context, id int) error {
		ctx, st, err := bedsql.Begin(ctx, bedsql.Staged())
		if err != nil {
			return err
		}
		if _, err := a.Wrapped.ExecContext(ctx, note(id)); err != nil {
			return err
		}
		return st.End(ctx)
	},
}

// A fault leaves writes of several tenants to retries or to the job, on connections without the
// hooks. Each row still gets the tenant of its writer.
func TestSettingsOfAnEntryComeWithItsDelivery(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, write := range ways {
			for _, logging := range []bedsql.Logging{bedsql.LogBefore, bedsql.LogAlongside, bedsql.LogOnFailure} {
				for _, sync := range []bool{true, false} {
					if logging != bedsql.LogBefore && (name == "staged" || name == "recorded in a transaction") {
						continue // they always log first
					}
					t.Run(fmt.Sprintf("%s/%d/%t", name, logging, sync), func(t *testing.T) {
						t.Parallel()
						a := newTenants(t, rig.FreshLike(t, db), rig.ExactlyOnce, func(c *bedsql.Config) { c.Logging, c.NoSyncRetry = logging, !sync })
						commits := rig.CommitsOf(a.p)
						if err := write(a, as("first"), 1); err != nil { // the table of receipts is there now
							t.Fatal(err)
						}
						for id, tenant := range []string{2: "beta", 3: odd, 4: "beta"} {
							if tenant == "" {
								continue
							}
							a.off.Store(false)
							cut := testproxy.Text("INSERT INTO note")
							if name == "local transaction" {
								cut = commits.Match
							}
							struck := a.p.CutBefore(func(m []byte) bool {
								if !cut(m) {
									return false
								}
								a.off.Store(true) // what is dialled from now on knows no tenant
								return true
							})
							err := write(a, as(tenant), id)
							testproxy.Await(t, struck)
							if sync && err != nil || !sync && !errors.Is(err, bedsql.ErrPending) {
								t.Errorf("%s: %v", tenant, err)
							}
						}
						if !sync {
							if report := a.RunOnce(); report.Delivered != 3 {
								t.Errorf("the job: %s", report)
							}
						}
						a.want("first", "beta", odd, "beta")
						rig.Eventually(t, "the log is empty", func() bool { return a.Left() == 0 })
					})
				}
			}
		}
	})
}

// A retry's connection goes back to no pool in the session of an entry.
func TestSettingsAreTakenBackFromAPgxpool(t *testing.T) {
	t.Parallel()
	a := newTenants(t, testdb.Postgres(t))
	cfg, err := pgxpool.ParseConfig(a.DB.DSN)
	if err != nil {
		t.Fatal(err)
	}
	cfg.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		return true, a.set(ctx, func(tenant string) error {
			_, err := conn.Exec(ctx, "SELECT set_config('app.tenant_id', $1, false)", tenant)
			return err
		})
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c, err := postgres.NewConnector(delivery.Target{Connector: stdlib.GetPoolConnector(pool), DataSource: a.target.DataSource, Settings: a.target.Settings}, a.Cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(c)
	db.SetMaxIdleConns(-1)
	struck := a.p.CutBefore(func(m []byte) bool {
		if !testproxy.Text("INSERT INTO note")(m) {
			return false
		}
		a.off.Store(true)
		return true
	})
	if _, err := db.ExecContext(as("beta"), note(1)); err != nil {
		t.Fatal(err)
	}
	testproxy.Await(t, struck)
	a.want("beta")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		var left sql.NullString
		if err := pool.QueryRow(t.Context(), "SELECT current_setting('app.tenant_id', true)").Scan(&left); err != nil || left.Valid {
			t.Errorf("a connection of the pool has the tenant %q, %v", left.String, err)
		}
	}
}

// Hooks at each checkout change a job's connections, too. An entry still gets its own tenant.
func TestHooksOfAJobDoNotChangeAnEntrysTenant(t *testing.T) {
	t.Parallel()
	a := newTenants(t, testdb.Postgres(t), rig.NoSyncRetry)
	for id := range 6 {
		struck := a.p.CutBefore(testproxy.Text("INSERT INTO note"))
		if _, err := a.Wrapped.ExecContext(as("beta"), note(id)); !errors.Is(err, bedsql.ErrPending) {
			t.Fatal(err)
		}
		testproxy.Await(t, struck)
	}
	job := a.JobFor(asyncjob.Targets{a.target.DataSource: a.target}, func(c *asyncjob.Config) { c.Concurrency = 1 })
	if report, err := job.RunOnce(as("the job")); err != nil || report.Delivered != 6 {
		t.Errorf("the job: %s, %v", report, err)
	}
	a.want("beta", "beta", "beta", "beta", "beta", "beta")
}

// The tenants of a group's data source must be the same. Its compensation runs as its part did.
func TestStagedWritesOfTwoTenantsAreRefused(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		a := newTenants(t, db, rig.ExactlyOnce)
		ctx, st, err := bedsql.Begin(as("beta"), bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		a.run(ctx, note(1))
		if _, err := a.Wrapped.ExecContext(context.WithValue(ctx, tenantKey{}, "gamma"), note(2)); !errors.Is(err, bedsql.ErrStaged) || strings.Contains(err.Error(), "gamma") {
			t.Errorf("another tenant: %v", err)
		}
		if err := st.End(ctx); err != nil {
			t.Fatal(err)
		}
		a.want("beta")
		a.WantNoLog()
	})
}

// run executes on a's pool under a context.
func (a *tenants) run(ctx context.Context, query string) {
	a.T.Helper()
	if _, err := a.Wrapped.ExecContext(ctx, query); err != nil {
		a.T.Fatalf("%s: %v", query, err)
	}
}

// A compensation runs under the tenant of the part that it undoes.
func TestCompensationRunsUnderThePartsTenant(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		a := newTenants(t, db)
		b := newTenants(t, rig.FreshLike(t, db))
		b.Cfg.Storage = a.Cfg.Storage
		b.Wrapped = b.OpenTarget(b.target)
		b.Exec("INSERT INTO note (id) VALUES (1)")
		ctx, st, err := bedsql.Begin(as("beta"), bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		a.run(ctx, note(1))
		a.run(st.Compensation(ctx), note(2))
		b.run(ctx, note(1)) // refused: the row is there
		a.off.Store(true)
		b.off.Store(true)
		reached, release := b.p.Hold(testproxy.Text("INSERT INTO note"))
		ended := make(chan error, 1)
		go func() { ended <- st.End(ctx) }()
		select {
		case err := <-ended:
			t.Fatalf("End came first: %v", err)
		case <-reached:
		}
		rig.Eventually(t, "the other part is applied", func() bool { return a.Count("SELECT COUNT(*) FROM note") == 1 })
		release()
		if err := <-ended; !errors.As(err, new(*bedsql.CompensatedError)) {
			t.Fatalf("End: %v", err)
		}
		a.want("beta", "beta")
		a.WantNoLog()
	})
}

// Without its settings no entry is written, and nothing runs.
func TestWriteWithoutItsSettingsIsRefused(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		adds := 0
		a := newTenants(t, db, func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
		refused := func(what, reason string) {
			t.Helper()
			for name, write := range ways {
				err := write(a, context.Background(), 1)
				if err == nil || !strings.Contains(err.Error(), "nothing was run") || !strings.Contains(err.Error(), variable[db.Driver]) || !strings.Contains(err.Error(), reason) {
					t.Errorf("%s, %s: %v", what, name, err)
				}
			}
		}
		refused("no tenant", "is not set")
		a.p.Refuse()
		a.Wrapped = a.OpenTarget(a.target)
		if err := ways["single"](a, as("beta"), 1); !errors.Is(err, bedsql.ErrNotLogged) || bedsql.OutcomeOf(err) != bedsql.OutcomeNotAccepted || !strings.Contains(err.Error(), variable[db.Driver]) {
			t.Errorf("without a connection: %v", err)
		}
		a.p.Accept()
		a.want()
		if adds != 0 {
			t.Errorf("%d entries were written", adds)
		}
	})
}

// A user variable of MySQL keeps its type, or the write is refused.
func TestUserVariablesKeepTheirTypes(t *testing.T) {
	t.Parallel()
	r, p := rig.NewBehindProxy(t, testdb.MySQL(t), rig.NoSyncRetry, func(c *bedsql.Config) { c.SessionSettings = []string{"@Tenant"} })
	r.Exec("CREATE TABLE kind (id INT PRIMARY KEY, v LONGTEXT)",
		"CREATE TRIGGER of BEFORE INSERT ON kind FOR EACH ROW SET NEW.v = CONCAT(CHARSET(@tenant), ' ', COLLATION(@tenant), ' ', HEX(@tenant), ' ', JSON_ARRAY(@tenant))")
	values := map[string]bool{
		"'acme'": true, "'42'": true, "42": true, "0": true, "TRUE": true, "999999999999999999": true, "''": true, `'a''b\\\\c"%;='`: true, "'ü😀'": true, "'?x'": true,
		"-1": false, "1.5": false, "1e3": false, "18446744073709551615": false, "X'00FF'": false, "_latin1'a'": false, "NULL": false,
	}
	id := 0
	for value, kept := range values {
		id++
		conn := r.Conn()
		tell := func(query string) error {
			return conn.Raw(func(dc any) error {
				inner, err := dc.(interface {
					QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error)
				}).QueryContext(t.Context(), query, nil)
				if err == nil {
					err = inner.Close()
				}
				return err
			})
		}
		// A function hides the change from bed, as a hook does.
		r.Exec("DROP FUNCTION IF EXISTS login", "CREATE FUNCTION login() RETURNS INT DETERMINISTIC BEGIN SET @tenant = "+value+"; RETURN 1; END")
		if err := tell("SELECT login()"); err != nil {
			t.Fatal(err)
		}
		insert := fmt.Sprintf("INSERT INTO kind (id) VALUES (%d)", id)
		if !kept {
			if _, err := conn.ExecContext(t.Context(), insert); err == nil || !strings.Contains(err.Error(), "@tenant") || errors.Is(err, bedsql.ErrPending) {
				t.Errorf("%s: %v", value, err)
			}
			_ = conn.Close()
			continue
		}
		struck := p.CutBefore(testproxy.Text(insert))
		if _, err := conn.ExecContext(t.Context(), insert); !errors.Is(err, bedsql.ErrPending) {
			t.Errorf("%s: %v", value, err)
		}
		testproxy.Await(t, struck)
		_ = conn.Close()
		direct, err := r.Bare.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.Must(direct, "DO login()")
		r.Must(direct, fmt.Sprintf("INSERT INTO kind (id) VALUES (%d)", -id))
		_ = direct.Close()
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("%s: %s", value, report)
		}
		if n := r.Count(fmt.Sprintf("SELECT COUNT(DISTINCT v) FROM kind WHERE ABS(id) = %d", id)); n != 1 {
			t.Errorf("%s: the job wrote another value", value)
		}
	}
	r.WantNoLog()
}

// What an entry cannot keep is refused when the database is opened. Hooks without a name give one
// warning.
func TestNamesOfSessionSettingsAreChecked(t *testing.T) {
	t.Parallel()
	pg, my, lite := testdb.Postgres(t), testdb.MySQL(t), testdb.SQLite(t)
	for _, c := range []struct {
		db     testdb.DB
		name   string
		reason string
	}{
		{pg, "app.tenant_id", ""}, {pg, "App.Tenant_ID", ""}, {pg, "timezone", ""},
		{pg, "search_path", "bedReceiptSchema"}, {pg, "role", "bedReceiptSchema"}, {pg, "statement_timeout", "neither"}, {pg, "pgaudit.log", "neither"},
		{pg, "session_authorization", "log-in"}, {pg, "transaction_isolation", "log-in"}, {pg, "a b", "run-time parameter"}, {pg, "@tenant", "run-time parameter"}, {pg, "", "run-time parameter"},
		{my, "@tenant", ""}, {my, "sql_mode", "user variable"}, {my, "@@sql_mode", "user variable"}, {my, "@a, @b", "user variable"}, {my, "@`a`", "user variable"},
		{lite, "foreign_keys", "has no settings"},
	} {
		r := rig.New(t, c.db)
		r.Cfg.SessionSettings = []string{c.name}
		_, err := bedsql.NewConnector(rig.TargetOf(t, c.db), r.Cfg)
		if c.reason == "" && err != nil || c.reason != "" && (err == nil || !strings.Contains(err.Error(), c.reason) || !strings.Contains(err.Error(), c.name)) {
			t.Errorf("%s, %q: %v", c.db.Driver, c.name, err)
		}
	}
	r := rig.New(t, pg)
	r.Cfg.SessionSettings = []string{"search_path", "role"}
	if _, err := bedsql.NewConnector(rig.TargetOf(t, rig.WithParam(pg, "bedReceiptSchema", "receipts")), r.Cfg); err != nil {
		t.Error(err)
	}
	cfg, err := pgx.ParseConfig(pg.DSN)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), pg.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	prepared := pool.Config()
	prepared.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { return true, nil }
	pool2, err := pgxpool.NewWithConfig(t.Context(), prepared)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool2.Close)
	hook := func(context.Context, *pgx.Conn) error { return nil }
	for what, c := range map[string]struct {
		connector driver.Connector
		names     []string
		warns     bool
	}{
		"no hook": {stdlib.GetConnector(*cfg), nil, false}, "BeforeConnect": {stdlib.GetConnector(*cfg, stdlib.OptionBeforeConnect(func(context.Context, *pgx.ConnConfig) error { return nil })), nil, false},
		"AfterConnect": {stdlib.GetConnector(*cfg, stdlib.OptionAfterConnect(hook)), nil, true}, "ResetSession": {stdlib.GetConnector(*cfg, stdlib.OptionResetSession(hook)), nil, true},
		"an empty list": {stdlib.GetConnector(*cfg, stdlib.OptionResetSession(hook)), []string{}, false}, "a name": {stdlib.GetConnector(*cfg, stdlib.OptionResetSession(hook)), []string{"app.x"}, false},
		"a pool": {stdlib.GetPoolConnector(pool), nil, false}, "PrepareConn": {stdlib.GetPoolConnector(pool2), nil, true}, "a pool with ResetSession": {stdlib.GetPoolConnector(pool, stdlib.OptionResetSession(hook)), nil, true},
		"an unknown connector": {struct{ driver.Connector }{stdlib.GetConnector(*cfg)}, nil, true},
	} {
		var lines rig.LogLines
		with := r.Cfg
		with.SessionSettings, with.Logger = c.names, lines.Logger()
		if _, err := postgres.NewConnector(delivery.Target{Connector: c.connector, DataSource: "d"}, with); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if n := strings.Count(lines.String(), "Config.SessionSettings"); (n == 1) != c.warns || n > 1 {
			t.Errorf("%s: %d warnings: %s", what, n, lines.String())
		}
	}
}

// A change of search_path between two checkouts leads to the tenant's own table, and the receipt
// stays in its schema.
func TestNamedSearchPathLeadsEachWriteToItsOwnTable(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	direct := rig.New(t, db)
	direct.Exec("CREATE SCHEMA receipts", "CREATE SCHEMA north", "CREATE SCHEMA south", "CREATE TABLE north.note (id INT PRIMARY KEY)", "CREATE TABLE south.note (id INT PRIMARY KEY)")
	r, p := rig.NewBehindProxy(t, db, rig.ExactlyOnce, rig.NoSyncRetry)
	r.DB = rig.WithParam(r.DB, "bedReceiptSchema", "receipts")
	cfg, err := pgx.ParseConfig(r.DB.DSN)
	if err != nil {
		t.Fatal(err)
	}
	hook := func(ctx context.Context, conn *pgx.Conn) error {
		if schema, ok := ctx.Value(tenantKey{}).(string); ok {
			_, err := conn.Exec(ctx, "SET search_path = "+schema)
			return err
		}
		return nil
	}
	r.Cfg.SessionSettings = []string{"search_path"}
	r.Wrapped = r.OpenTarget(postgres.TargetOf(cfg, rig.TargetOf(t, r.DB).DataSource, stdlib.OptionAfterConnect(hook), stdlib.OptionResetSession(hook)))
	for i := range 6 {
		if i >= 2 {
			p.CutBefore(testproxy.Text("INSERT INTO note"))
		}
		if _, err := r.Wrapped.ExecContext(as([]string{"north", "south"}[i%2]), note(i)); (err == nil) != (i < 2) || i >= 2 && !errors.Is(err, bedsql.ErrPending) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if report := r.RunOnce(); report.Delivered != 4 {
		t.Errorf("the job: %s", report)
	}
	for _, schema := range []string{"north", "south"} {
		if n := r.Count("SELECT COUNT(*) FROM " + schema + ".note"); n != 3 {
			t.Errorf("%s has %d rows", schema, n)
		}
	}
	r.WantNoLog()
}

// A write reads its settings in one message, a local transaction once, and neither without names.
func TestSettingsAreReadOnceForEachEntry(t *testing.T) {
	t.Parallel()
	a := newTenants(t, testdb.Postgres(t))
	named := a.Wrapped
	a.Cfg.SessionSettings = []string{}
	for _, c := range []struct {
		pool *sql.DB
		want int
	}{{named, 1}, {a.OpenTarget(a.target), 0}} {
		a.Wrapped = c.pool
		c.pool.SetMaxOpenConns(1)
		asked := a.p.Count(testproxy.Text("current_setting(n, true)"))
		for i, write := range []func(id int) error{
			func(id int) error { return ways["single"](a, as("beta"), id) }, // its dial asks, too
			func(id int) error { return ways["single"](a, as("beta"), id) },
			func(id int) error {
				tx, err := c.pool.BeginTx(as("beta"), nil)
				if err != nil {
					return err
				}
				defer func() { _ = tx.Rollback() }()
				for n := range 3 {
					if _, err := tx.Exec(note(id + n)); err != nil {
						return err
					}
				}
				return tx.Commit()
			},
		} {
			before := asked()
			if err := write(1 - 100*c.want + 10*i); err != nil {
				t.Fatal(err)
			}
			if n := asked() - before; i > 0 && n != c.want {
				t.Errorf("%d names, write %d: asked %d times", c.want, i, n)
			}
		}
	}
}

// A pooler may give each transaction another server's session.
func TestSettingsBehindAPoolerAreRefused(t *testing.T) {
	t.Parallel()
	rig.Poolers(t)
	db := testdb.Postgres(t)
	r := rig.New(t, testdb.PgBouncer(t, db), func(c *bedsql.Config) { c.SessionSettings = []string{"app.tenant_id"} })
	r.Bare = db.Open(t)
	r.Account(1)
	if err := r.Fails(r.Wrapped, rig.AddOne); !strings.Contains(err.Error(), "pooler") || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
		t.Errorf("%v", err)
	}
	r.WantBalances(1)
	r.WantNoLog()
}

// The job needs no connection for each tenant.
func TestJobServesManyTenantsOnFewConnections(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		const tenantsOf = 40
		a := newTenants(t, db, rig.NoSyncRetry)
		a.p.CutBefore(testproxy.Text("INSERT INTO note"))
		if _, err := a.Wrapped.ExecContext(as("beta"), note(0)); !errors.Is(err, bedsql.ErrPending) {
			t.Fatal(err)
		}
		of, want := a.WantOneLog(), []string{"beta"}
		var units []*entry.Unit
		for id := 1; id <= tenantsOf; id++ {
			tenant := fmt.Sprint("tenant", id%7, "-", id)
			units = append(units, &entry.Unit{ID: entry.NewID(), DataSource: of.DataSource, Settings: of.Settings,
				Session: strings.Replace(of.Session, "beta", tenant, 1), Statements: []entry.Statement{{SQL: note(id)}}})
			want = append(want, tenant)
		}
		if err := a.Storage.Add(t.Context(), time.Minute, units...); err != nil {
			t.Fatal(err)
		}
		for _, u := range units {
			if err := a.Storage.Release(t.Context(), u, entry.Verdict{}); err != nil {
				t.Fatal(err)
			}
		}
		before := a.p.Accepted()
		if report := a.RunOnce(); report.Delivered != tenantsOf+1 {
			t.Errorf("the job: %s", report)
		}
		a.want(want...)
		if n := a.p.Accepted() - before; n > tenantsOf/2 {
			t.Errorf("%d connections for %d tenants", n, tenantsOf)
		}
	})
}
