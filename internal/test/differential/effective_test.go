package differential

import (
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/asyncjob"
	bedmysql "github.com/bedsql/bed/bedsql/mysql"
	bedpostgres "github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// randomDSNs is how many DSNs are tried for each database.
const randomDSNs = 1000

// effective is a world with separate accounts, and separate ways to the database, for applications
// and jobs.
type effective struct {
	read func(dsn string) (delivery.Target, error)
	// admin reads what was written.
	admin *sql.DB
	// applications and jobs are DSNs without the tested parameters.
	applications, jobs []string
	// before is run by admin before each portion of the DSNs.
	before []string
	add    func(dsn, name, value string) string
	params map[string][]string
	// write writes a row with its session's state. seen is that row and its place, without its
	// number.
	write, seen string
}

// An entry holds its session's effective settings, with the effects of the DSN, its account, the
// database and a pooler. A job with another account, or behind a pooler, writes the same row to the
// same place, or no row.
func TestJobWritesLikeTheApplicationsSession(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: needs servers")
	}
	for name, world := range map[string]func(*testing.T) *effective{mysql: effectiveMySQL, postgres: effectivePostgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			world(t).run(t)
		})
	}
}

func (e *effective) run(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BED_FUZZ_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("BED_FUZZ_SEED: %v", err)
		}
	}
	t.Logf("BED_FUZZ_SEED=%d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	log := txlog.NewMemory()
	refused := 0
	dsns := make([]string, 0, randomDSNs)
	for tries := 0; len(dsns) < randomDSNs; tries++ {
		if tries%(randomDSNs/len(e.before)) == 0 {
			must(t, e.admin, e.before[tries/(randomDSNs/len(e.before))%len(e.before)])
		}
		dsn := e.applications[rnd.IntN(len(e.applications))]
		for _, name := range slices.Sorted(maps.Keys(e.params)) {
			values := e.params[name]
			if rnd.IntN(6) == 0 {
				dsn = e.add(dsn, name, values[rnd.IntN(len(values))])
			}
		}
		if err := e.apply(t, log, dsn, len(dsns), rnd.IntN(len(e.jobs))); err != nil {
			if refused++; refused > randomDSNs {
				t.Fatalf("the servers take too few of these DSNs: %v", err)
			}
			continue
		}
		dsns = append(dsns, dsn)
	}
	targets := asyncjob.Targets{}
	for i, dsn := range e.jobs {
		target, err := e.read(dsn)
		if err != nil {
			t.Fatal(err)
		}
		targets[fmt.Sprint("job ", i)] = target
	}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	job, err := asyncjob.New(log, targets, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = job.Close() }()
	untried := func(u *entry.Unit) bool { return !u.Parked && u.LastError == "" }
	var report asyncjob.Report
	var units []*entry.Unit
	for rounds := 0; rounds == 0 || slices.ContainsFunc(units, untried); rounds++ { // a round gives back what waits behind slow ones
		if rounds > 600 || !jitter.Sleep(t.Context(), 50*time.Millisecond) {
			t.Fatal("the job did not try every unit")
		}
		if report, err = job.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if units, err = log.List(t.Context(), txlog.Filter{Limit: randomDSNs}); err != nil {
			t.Fatal(err)
		}
	}
	waiting := map[string]string{}
	for _, u := range units {
		waiting[u.TransactionID] = u.LastError
		if u.Parked || !strings.Contains(u.LastError, target.NotSent+"the entry was written in a session that has") {
			t.Errorf("%s with %q: %s", dsns[indexOf(u)], u.Session, u.LastError)
		}
	}
	t.Logf("%d DSNs, %d refused by the server; %v", len(dsns), refused, report)
	if len(waiting) > randomDSNs*2/3 {
		t.Errorf("%d of %d were pushed back: this test shows too little", len(waiting), randomDSNs)
	}
	rows := e.rows(t)
	for i, dsn := range dsns {
		app, job := rows[2*i], rows[2*i+1]
		_, waits := waiting[fmt.Sprint(i)]
		if waits && job != "" || !waits && job != app {
			t.Errorf("%s: the application writes\n%s\nthe job, which delivered %v,\n%s", dsn, app, !waits, job)
		}
	}
}

func indexOf(u *entry.Unit) (i int) {
	_, _ = fmt.Sscan(u.TransactionID, &i)
	return i
}

// apply writes the row 2*i in a session of dsn, and leaves an entry for 2*i+1. It fails if no such
// session is possible, or if the session cannot write.
func (e *effective) apply(t *testing.T, log txlog.Storage, dsn string, i, job int) error {
	to, err := e.read(dsn)
	if err != nil {
		return err
	}
	conn, facts, err := target.Dial(t.Context(), &to)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	args := func(id int) []driver.NamedValue {
		return []driver.NamedValue{{Ordinal: 1, Value: int64(id)}, {Ordinal: 2, Value: "Grüße"}, {Ordinal: 3, Value: time.Date(2024, 2, 3, 4, 5, 6, 7000, time.UTC)}}
	}
	if _, _, err := attempt.Exec(t.Context(), conn, e.write, args(2*i)); err != nil {
		return err
	}
	if facts.Session == "" {
		t.Fatalf("%s: the session says nothing", dsn)
	}
	stored := args(2*i + 1)
	if stored[2].Value, err = to.Dialect.Storable(stored[2].Value); err != nil {
		t.Fatal(err)
	}
	params, err := entry.EncodeParams(stored)
	if err != nil {
		t.Fatal(err)
	}
	u := &entry.Unit{
		ID: entry.NewID(), TransactionID: fmt.Sprint(i), DataSource: fmt.Sprint("job ", job), Settings: to.Settings, Session: facts.Session,
		Statements: []entry.Statement{{SQL: e.write, Params: params}},
	}
	if err := log.Add(t.Context(), time.Minute, u); err != nil {
		t.Fatalf("%s: %v", dsn, err)
	}
	if err := log.Release(t.Context(), u, entry.Verdict{}); err != nil {
		t.Fatal(err)
	}
	return nil
}

func (e *effective) rows(t *testing.T) map[int]string {
	found, err := e.admin.Query(e.seen)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = found.Close() }()
	rows := map[int]string{}
	for found.Next() {
		var id int
		var row string
		if err := found.Scan(&id, &row); err != nil {
			t.Fatal(err)
		}
		rows[id] += row + "\n"
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

func must(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func effectivePostgres(t *testing.T) *effective {
	// Its jobs open more sessions than a shared server may have left.
	db := testdb.PrivatePostgres(t, "max_connections=300").DB(t)
	admin := db.Open(t)
	role := func(name string) string { return name + "_" + db.Name }
	as := func(name string) string {
		at, err := url.Parse(db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		at.User = url.UserPassword(role(name), "secret")
		return at.String()
	}
	t.Cleanup(func() {
		for _, name := range []string{"app", "zone", "path", "job", "poor"} {
			must(t, admin, "DROP OWNED BY "+role(name)+" CASCADE", "DROP ROLE "+role(name))
		}
	})
	schemas := []string{"public", role("app"), `"Öl"`, `"öl"`, `"a, ""b"`, "tenant", "hidden"}
	for _, name := range []string{"app", "zone", "path", "job", "poor"} {
		must(t, admin, "CREATE ROLE "+role(name)+" LOGIN PASSWORD 'secret'")
	}
	must(t, admin, "ALTER ROLE "+role("zone")+" SET timezone = 'Asia/Tokyo'", "ALTER ROLE "+role("zone")+" SET app.tenant = 'of the account'", "ALTER ROLE "+role("zone")+" SET datestyle = 'German'",
		"ALTER ROLE "+role("path")+" SET search_path = tenant, public", "ALTER ROLE "+role("path")+" SET standard_conforming_strings = off",
		"ALTER ROLE "+role("job")+" SET timezone = 'America/New_York'", "ALTER ROLE "+role("job")+" SET search_path = hidden", "ALTER ROLE "+role("job")+" SET bytea_output = escape")
	var all []string
	for _, schema := range schemas {
		must(t, admin, "CREATE SCHEMA IF NOT EXISTS "+schema, "CREATE TABLE "+schema+".said (id INT PRIMARY KEY, what TEXT)")
		for _, name := range []string{"app", "zone", "path", "job"} {
			must(t, admin, "GRANT USAGE ON SCHEMA "+schema+" TO "+role(name), "GRANT ALL ON "+schema+".said TO "+role(name))
		}
		all = append(all, "SELECT id, '"+schema+": ' || what FROM "+schema+".said")
	}
	must(t, admin, "GRANT ALL ON SCHEMA public TO "+role("poor"), "GRANT ALL ON public.said TO "+role("poor"))
	behind := testdb.PgBouncer(t, db, "default_pool_size=1", "ignore_startup_parameters=search_path,options,bytea_output,app.tenant,extra_float_digits,intervalstyle,IntervalStyle")
	in := "ALTER DATABASE " + db.Name
	return &effective{
		read: bedpostgres.Target, admin: admin,
		applications: []string{as("app"), as("zone"), as("path"), db.DSN, behind.DSN},
		jobs:         []string{as("job"), as("job"), as("app"), db.DSN, as("poor"), behind.DSN},
		before:       []string{in + " SET app.tenant = 'of the database'", in + " SET intervalstyle = 'iso_8601'", in + " RESET ALL", in + " SET search_path = 'Tenant', \"$user\", public"},
		add: func(dsn, name, value string) string {
			return dsn + "&" + url.PathEscape(name) + "=" + strings.ReplaceAll(url.PathEscape(value), "&", "%26")
		},
		params: map[string][]string{
			"search_path": {"Öl,public", `"Öl"`, "öl", `"a, ""b",public`, "TENANT", " tenant , public ", `"$user",public`, "nowhere,hidden", "pg_catalog,public"},
			"TimeZone":    {"UTC", "Asia/Tokyo", "Europe/Berlin", "<+03>-03"}, "timezone": {"America/New_York"},
			"datestyle": {"ISO, DMY", "German", "sql,ymd"}, "IntervalStyle": {"iso_8601", "postgres_verbose"}, "bytea_output": {"escape", "hex"},
			"standard_conforming_strings": {"off", "on", "0"}, "extra_float_digits": {"0", "-3", "3"}, "app.tenant": {" a ", "b'\\", "ü"},
			"client_encoding": {"LATIN1", "utf-8"}, "CLIENT_ENCODING": {"LATIN1"}, "default_query_exec_mode": {"exec", "simple_protocol", "cache_describe"},
			"options": {`-c search_path=tenant,\ public`, `-c app.tenant=a\`, `-c app.tenant=\ x\ `, `--timezone=Asia/Tokyo -c datestyle=German`, `--app.tenant=y`},
		},
		write: `INSERT INTO said (id, what) VALUES ($1, concat_ws('|', $2::text, length($2::text), $3::timestamptz::text, TIMESTAMPTZ '2024-02-03 04:05:06Z'::text, DATE '01/02/2024'::text,
  INTERVAL '1 year 2 days'::text, decode('61ff', 'hex')::text, (1.0/3)::float8::text, current_setting('app.tenant', true), length('a\\b')))`,
		seen: strings.Join(all, " UNION ALL "),
	}
}

func effectiveMySQL(t *testing.T) *effective {
	server := testdb.PrivateMariaDB(t, "--character-set-server=utf8mb4")
	db := server.DB(t)
	admin := db.Open(t)
	must(t, admin, "CREATE DATABASE elsewhere")
	for _, table := range []string{"said", "elsewhere.said"} {
		must(t, admin, "CREATE TABLE "+table+" (id INT PRIMARY KEY, what TEXT CHARACTER SET utf8mb4)")
	}
	as := func(name string) string {
		must(t, admin, "CREATE USER "+name+"@'127.0.0.1'", "GRANT ALL ON *.* TO "+name+"@'127.0.0.1'")
		if name != "job" { // init_connect is not for it
			must(t, admin, "REVOKE SUPER, CONNECTION ADMIN, BINLOG ADMIN ON *.* FROM "+name+"@'127.0.0.1'")
		}
		cfg, err := gomysql.ParseDSN(db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		cfg.User = name
		return cfg.FormatDSN()
	}
	app, job, poor := as("app"), as("job"), as("poor")
	add := func(dsn, name, value string) string {
		separator := "?"
		if strings.Contains(dsn, "?") {
			separator = "&"
		}
		return dsn + separator + name + "=" + url.QueryEscape(value)
	}
	return &effective{
		read: bedmysql.Target, admin: admin,
		applications: []string{app, app, job}, jobs: []string{job, poor, app, add(job, "time_zone", "'-05:00'"), add(poor, "sql_mode", "''")},
		before: []string{
			"SET GLOBAL init_connect = 'SET time_zone = ''+09:00'', sql_mode = ''PIPES_AS_CONCAT'''", "SET GLOBAL init_connect = 'SET NAMES latin1, lc_time_names = ''de_DE'''",
			"SET GLOBAL init_connect = 'SET div_precision_increment = 7, default_week_format = 3, foreign_key_checks = 0'", "SET GLOBAL init_connect = 'SET group_concat_max_len = 4'",
			"SET GLOBAL init_connect = ''", "SET GLOBAL init_connect = 'USE elsewhere'",
		},
		add: add,
		params: map[string][]string{
			"sql_mode": {"4", "'4'", "2", "'ANSI'", `"pipes_as_concat , STRICT_ALL_TABLES"`, "''", "concat(@@sql_mode, ',ANSI')", "DEFAULT"}, "time_zone": {"'+02:00'", `"-03:00"`, "SYSTEM", "'SYSTEM'", "DEFAULT"}, "TIME_ZONE": {"'+03:00'"},
			"charset": {"latin1", "utf8mb4", "latin1,utf8mb4"}, "collation": {"utf8mb4_bin"}, "loc": {"Asia/Tokyo"}, "timeTruncate": {"1s"}, "interpolateParams": {"true"},
			"div_precision_increment": {"8"}, "default_week_format": {"6"}, "group_concat_max_len": {"1024", "5"}, "lc_time_names": {"'fr_FR'", "'de_DE'"}, "foreign_key_checks": {"OFF", "0", "true"},
			"@tenant": {"'seven'", "' x '"}, "old_mode": {"''"}, "@@session.unique_checks": {"0"}, "collation_connection": {"'latin1_swedish_ci'"}, "max_sort_length": {"64"},
		},
		write: `INSERT INTO said (id, what) VALUES (?, CONCAT_WS('\n', ?, ?, FROM_UNIXTIME(86400), 1/3, WEEK('2024-01-07'), DATE_FORMAT('2024-01-07', '%W'), '1'||'2', @tenant,
  (SELECT GROUP_CONCAT(c) FROM (SELECT 'abc' AS c UNION SELECT 'def') AS l), @@foreign_key_checks, @@unique_checks, @@collation_connection, @@max_sort_length, @@sql_mode))`,
		seen: "SELECT id, HEX(what) FROM said UNION ALL SELECT id, CONCAT('elsewhere: ', HEX(what)) FROM elsewhere.said",
	}
}
