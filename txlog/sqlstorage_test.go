package txlog_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	_ "github.com/bedsql/bed/bedsql/mysql"
	_ "github.com/bedsql/bed/bedsql/postgres"
	_ "github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/leaks"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
	"github.com/bedsql/bed/txlog/internal/groupcommit"
	"github.com/bedsql/bed/txlog/txlogtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaks.Patient(m)) }

func open(t *testing.T, db testdb.DB, opts ...txlog.Option) *txlog.SQLStorage {
	t.Helper()
	if db.Driver != testdb.DriverSQLite {
		opts = append([]txlog.Option{txlog.WithMaxConns(4)}, opts...)
	}
	s, err := txlog.Open(t.Context(), db.Driver, db.DSN, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func unit(statements ...string) *entry.Unit {
	u := &entry.Unit{ID: entry.NewID(), DataSource: "orders"}
	for _, text := range statements {
		u.Statements = append(u.Statements, entry.Statement{SQL: text})
	}
	return u
}

func rowCount(t *testing.T, pool *sql.DB) (n int) {
	t.Helper()
	if err := pool.QueryRow("SELECT count(*) FROM transaction_log").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestServerWithoutSkipLockedHoldsNoLog(t *testing.T) {
	if os.Getenv(testdb.EnvMySQLLogDSN) == "" {
		t.Log("runs by make test-mysql-target")
		return
	}
	db := testdb.MySQL(t)
	_, err := txlog.Open(t.Context(), db.Driver, db.DSN)
	if !errors.Is(err, txlog.ErrUnusable) || !strings.Contains(err.Error(), "MySQL 8.0 or newer") || !strings.Contains(err.Error(), "SKIP LOCKED") {
		t.Errorf("got %v", err)
	}
	var tables int
	if err := db.Open(t).QueryRow("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()").Scan(&tables); err != nil || tables != 0 {
		t.Errorf("it left %d tables, %v", tables, err)
	}
}

func TestServerWithSkipLockedHoldsALogWhateverItsVersion(t *testing.T) {
	t.Parallel()
	s := open(t, testdb.PrivateMariaDB(t, "--version=5.7.44-backported").DB(t))
	if err := s.Add(t.Context(), time.Minute, unit("DELETE FROM a")); err != nil {
		t.Error(err)
	}
}

func TestTheContractIsKeptThroughTheDatabasesPackages(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		pool := db.Open(t)
		txlogtest.Exercise(t, func(t *testing.T) txlog.Storage {
			s := open(t, db)
			if _, err := pool.ExecContext(t.Context(), "DELETE FROM transaction_log"); err != nil {
				t.Fatal(err)
			}
			return s
		})
	})
}

func TestColumnsHoldWhatAPersonExpects(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := open(t, db)
		u := unit("UPDATE a SET x = 'y'")
		u.Statements[0].Params = `[1,"a"]`
		if err := s.Add(t.Context(), time.Minute, u); err != nil {
			t.Fatal(err)
		}
		var id, typ, source, text, params, transaction string
		var created, tries, next, until int64
		quoted := map[string]string{"mysql": "`sql`"}[db.Driver]
		if quoted == "" {
			quoted = `"sql"`
		}
		err := db.Open(t).QueryRow("SELECT id, transaction_type, data_source, "+quoted+", parameters, creation_time, async_delivery_try_times, transaction_id, next_try_time, lease_until FROM transaction_log").
			Scan(&id, &typ, &source, &text, &params, &created, &tries, &transaction, &next, &until)
		if err != nil {
			t.Fatal(err)
		}
		if id != u.ID || typ != "BestEffortsDelivery" || source != "orders" || text != u.Statements[0].SQL || params != `[1,"a"]` || tries != 0 || transaction != u.ID {
			t.Errorf("got %s %s %s %s %s %d %s", id, typ, source, text, params, tries, transaction)
		}
		if d := time.Since(time.UnixMilli(created)); d < -time.Minute || d > time.Minute {
			t.Errorf("creation_time is %v ago: it is not in ms since the epoch", d)
		}
		for name, at := range map[string]int64{"lease_until": until, "next_try_time": next} { // PostgreSQL reads its clock for each
			if d := at - created; d < 60_000 || d > 90_000 {
				t.Errorf("%s is %d ms after creation_time, want the lease's 60000", name, d)
			}
		}
	})
}

func TestOpeningAnEmptyDatabaseTogetherWorks(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		var group sync.WaitGroup
		var identities sync.Map
		for range 6 {
			group.Go(func() {
				s, err := txlog.Open(t.Context(), db.Driver, db.DSN, txlog.WithMaxConns(1))
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Close()
				identities.Store(s.Identity(), true)
				if err := s.Add(t.Context(), time.Minute, unit("UPDATE a")); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if n := rowCount(t, db.Open(t)); n != 6 {
			t.Errorf("%d rows, want 6", n)
		}
		identities.Store(open(t, db).Identity(), true)
		n := 0
		identities.Range(func(any, any) bool { n++; return true })
		if n != 1 {
			t.Errorf("the log has %d identities, want one for all", n)
		}
	})
}

func TestTableLackingColumnsIsRefusedNamingAll(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		pool := db.Open(t)
		// As Sharding-JDBC made it.
		create := "CREATE TABLE transaction_log (id VARCHAR(40) NOT NULL PRIMARY KEY, transaction_type VARCHAR(30), data_source VARCHAR(255), `sql` TEXT, parameters TEXT, creation_time BIGINT, async_delivery_try_times INT)"
		if db.Driver == testdb.DriverPostgres {
			create = strings.ReplaceAll(create, "`", `"`)
		}
		if _, err := pool.Exec(create); err != nil {
			t.Fatal(err)
		}
		_, err := txlog.Open(t.Context(), db.Driver, db.DSN)
		if err == nil {
			t.Fatal("it was opened")
		}
		for _, word := range []string{"transaction_id", "statement_no", "statement_count", "settings", "not_replayable", "receipt", "fingerprint", "in_doubt", "next_try_time", "last_error", "parked", "lease_token", "lease_until", "schema.sql"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("the error does not name %s: %v", word, err)
			}
		}
		if strings.Contains(err.Error(), "creation_time") {
			t.Errorf("the error names a column that is there: %v", err)
		}
	})
}

func TestWithoutCreateTheTableMustExist(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		_, err := txlog.Open(t.Context(), db.Driver, db.DSN, txlog.WithoutCreate())
		if err == nil || !strings.Contains(err.Error(), "schema.sql") {
			t.Fatalf("got error %v, want one that says what to run", err)
		}
		open(t, db)
		s := open(t, db, txlog.WithoutCreate())
		if err := s.Add(t.Context(), time.Minute, unit("UPDATE a")); err != nil {
			t.Error(err)
		}
	})
}

func TestAccountWithoutCreateUsesTheExistingTable(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	open(t, db)
	admin := db.Open(t)
	user := "bed_" + db.Name[len(db.Name)-6:]
	for _, text := range []string{
		"CREATE USER '" + user + "'@'%' IDENTIFIED BY 'hunter2'", "CREATE USER '" + user + "'@'localhost' IDENTIFIED BY 'hunter2'",
		"GRANT SELECT, INSERT, UPDATE, DELETE ON " + db.Name + ".* TO '" + user + "'@'%'",
		"GRANT SELECT, INSERT, UPDATE, DELETE ON " + db.Name + ".* TO '" + user + "'@'localhost'",
	} {
		if _, err := admin.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _, _ = admin.Exec("DROP USER '" + user + "'@'%', '" + user + "'@'localhost'") })
	low := db
	low.DSN = user + ":hunter2@tcp(" + db.Addr() + ")/" + db.Name
	s := open(t, low)
	if err := s.Add(t.Context(), time.Minute, unit("UPDATE a")); err != nil {
		t.Error(err)
	}
	if where := s.Location(); strings.Contains(where, "hunter2") || strings.Contains(where, user) || where != db.Addr()+"/"+db.Name {
		t.Errorf("the location is %q", where)
	}
	for _, table := range []string{"bed_log", "transaction_log"} {
		if _, err := admin.Exec("DROP TABLE " + table); err != nil {
			t.Fatal(err)
		}
		_, err := txlog.Open(t.Context(), low.Driver, low.DSN)
		if err == nil || !strings.Contains(err.Error(), table) || !strings.Contains(err.Error(), "schema.sql") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got error %v, want one that names %s, says what to run and no password", err, table)
		}
	}
}

func TestRowWithNULLsIsMarkedUnreadable(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		pool := db.Open(t)
		schema, err := txlog.Schema(db.Driver)
		if err != nil {
			t.Fatal(err)
		}
		loose := strings.ReplaceAll(strings.ReplaceAll(schema, "TEXT NOT NULL", "TEXT NULL"), "INT NOT NULL", "INT NULL")
		loose = regexp.MustCompile(`(?m)^(  (?:receipt|fingerprint) .*) NOT NULL`).ReplaceAllString(loose, "$1 NULL")
		for text := range strings.SplitSeq(loose, ";\n") {
			if text = strings.TrimSpace(text); text != "" {
				if _, err := pool.Exec(text); err != nil {
					t.Fatal(err)
				}
			}
		}
		s := open(t, db)
		for _, column := range []string{"parameters", "settings", "statement_count", "in_doubt", "creation_time", "receipt", "fingerprint"} {
			bad, good := unit("UPDATE a", "UPDATE b"), unit("UPDATE c")
			if err := s.Add(t.Context(), time.Minute, bad, good); err != nil {
				t.Fatal(err)
			}
			if _, err := pool.Exec("UPDATE transaction_log SET " + column + " = NULL WHERE id = '" + bad.ID + "'"); err != nil {
				t.Fatal(err)
			}
			list, err := s.List(t.Context(), txlog.Filter{})
			if err != nil || len(list) != 2 {
				t.Fatalf("%s: got %d units, %v", column, len(list), err)
			}
			if list[0].Unreadable == nil || !strings.Contains(list[0].Unreadable.Error(), column) || list[0].DataSource != "orders" {
				t.Errorf("%s: got Unreadable %v", column, list[0].Unreadable)
			}
			if list[1].Unreadable != nil || list[1].Statements[0].SQL != "UPDATE c" {
				t.Errorf("%s: the other unit came back as %+v", column, list[1])
			}
			for _, u := range []*entry.Unit{bad, good} {
				if err := s.Release(t.Context(), u, entry.Verdict{Park: true}); err != nil {
					t.Errorf("%s: %v", column, err)
				}
				if err := s.Discard(t.Context(), u.ID); err != nil {
					t.Errorf("%s: %v", column, err)
				}
			}
			if n := rowCount(t, pool); n != 0 {
				t.Errorf("%s: %d rows were left behind", column, n)
			}
		}
	})
}

func TestStatementExceedingThePacketIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	s := open(t, db)
	var limit int
	if err := db.Open(t).QueryRow("SELECT @@max_allowed_packet").Scan(&limit); err != nil {
		t.Fatal(err)
	}
	err := s.Add(t.Context(), time.Minute, unit("UPDATE a", strings.Repeat("x", limit)))
	if err == nil || errors.Is(err, txlog.ErrInDoubt) || !strings.Contains(err.Error(), "max_allowed_packet") || len(err.Error()) > 1000 {
		t.Errorf("got error %.1000v, want a refusal that names max_allowed_packet", err)
	}
	// A value below the limit fits, together with the rest of the message.
	if err := s.Add(t.Context(), time.Minute, unit("UPDATE a", strings.Repeat("x", limit-4096))); err != nil {
		t.Errorf("got error %.1000v", err)
	}
}

func TestTheServersAnswerIsNoDoubt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := open(t, db)
		if _, err := db.Open(t).Exec("DROP TABLE transaction_log"); err != nil {
			t.Fatal(err)
		}
		u := unit("UPDATE a SET secret = 'hunter2'")
		start := time.Now()
		err := s.Add(t.Context(), time.Minute, u)
		if err == nil || errors.Is(err, txlog.ErrInDoubt) {
			t.Fatalf("got error %v, want a definite one", err)
		}
		if d := time.Since(start); d > repetitions {
			t.Errorf("it took %v: it was repeated", d)
		}
		if text := err.Error(); !strings.Contains(text, u.ID) || !strings.Contains(text, s.Location()) || s.Location() == "" || strings.Contains(text, "hunter2") {
			t.Errorf("the error does not say what and where: %v", err)
		}
	})
}

// repetitions of a write in doubt go on for that long.
const repetitions = groupcommit.RepeatFor

func TestWhatCannotBeOpenedSaysWhy(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, c := range []struct{ driver, dsn, want string }{
		{"oracle", "", "mysql, postgres or sqlite"},
		{"mysql", "root:hunter2@tcp(127.0.0.1:1)/bed", "127.0.0.1:1/bed"},
		{"postgres", "postgres://u:hunter2@127.0.0.1:1/bed", "127.0.0.1:1/bed"},
		{"sqlite", filepath.Join(t.TempDir(), "no", "such", "dir", "log.db"), "no/such/dir/log.db"},
	} {
		s, err := txlog.Open(ctx, c.driver, c.dsn)
		if err == nil {
			s.Close()
			t.Errorf("%s %s was opened", c.driver, c.dsn)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got error %v, want it to name %s and no password", err, c.want)
		}
	}
}

func TestNilOrZeroStorageIsClosed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, s := range []*txlog.SQLStorage{nil, {}} {
		if err := s.Add(ctx, time.Minute, unit("UPDATE a")); !errors.Is(err, txlog.ErrClosed) {
			t.Errorf("got %v", err)
		}
		if _, err := s.Claim(ctx, entry.ClaimRequest{DataSource: "a", Limit: 1, Lease: time.Minute}); !errors.Is(err, txlog.ErrClosed) {
			t.Errorf("got %v", err)
		}
		if err := s.Remove(ctx, nil); !errors.Is(err, txlog.ErrClosed) {
			t.Errorf("got %v", err)
		}
		if err := s.Close(); !errors.Is(err, txlog.ErrClosed) {
			t.Errorf("got %v", err)
		}
		if _, err := s.Missing(ctx, []string{"a"}); !errors.Is(err, txlog.ErrClosed) {
			t.Errorf("got %v", err)
		}
		s.Driver()
		s.Location()
		s.Identity()
	}
	var m *txlog.Memory
	m.Identity()
	if err := m.Add(ctx, time.Minute, unit("UPDATE a")); !errors.Is(err, txlog.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestOwnerWithoutTokenOwnsNothing(t *testing.T) {
	t.Parallel()
	for _, s := range []txlog.Storage{txlog.NewMemory(), open(t, testdb.SQLite(t))} {
		u := unit("UPDATE a")
		if err := s.Add(t.Context(), time.Minute, u); err != nil {
			t.Fatal(err)
		}
		bare := *u
		bare.Lease = entry.Lease{}
		for _, v := range []*entry.Unit{nil, &bare} {
			if err := s.Remove(t.Context(), v); !errors.Is(err, txlog.ErrLeaseLost) {
				t.Errorf("got %v", err)
			}
			if err := s.Release(t.Context(), v, entry.Verdict{}); !errors.Is(err, txlog.ErrLeaseLost) {
				t.Errorf("got %v", err)
			}
			if lost, err := s.Renew(t.Context(), time.Minute, v); err != nil || len(lost) != 1 {
				t.Errorf("got %v, %v", lost, err)
			}
		}
	}
}

// After a clock step backwards, creation and due times of units lie in the future.
func TestRetriedUnitIsDueDespiteClockStep(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := open(t, db)
		id := entry.NewID()
		u := &entry.Unit{ID: id, TransactionID: id, DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE a"}}}
		if err := s.Add(t.Context(), time.Minute, u); err != nil {
			t.Fatal(err)
		}
		if err := s.Release(t.Context(), u, entry.Verdict{}); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Open(t).Exec("UPDATE transaction_log SET creation_time = creation_time + 7200000, next_try_time = next_try_time + 7200000"); err != nil {
			t.Fatal(err)
		}
		claim := func(what string, want int) []*entry.Unit {
			t.Helper()
			units, err := s.Claim(t.Context(), entry.ClaimRequest{DataSource: "orders", Limit: 10, MinAge: time.Minute, Lease: time.Minute})
			if err != nil || len(units) != want {
				t.Fatalf("%s: %d units are claimed, want %d, %v", what, len(units), want, err)
			}
			return units
		}
		claim("before the retry", 0)
		if err := s.Retry(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		taken := claim("after it", 1)
		// Nor does it wait for the clock once it was given back.
		if err := s.Release(t.Context(), taken[0], entry.Verdict{}); err != nil {
			t.Fatal(err)
		}
		claim("once given back", 1)
	})
}

// The DSN has a wrong user or database; the function corrects it for each connection.
func TestFunctionBeforeConnectCompletesTheDSN(t *testing.T) {
	t.Parallel()
	const nobody = "nobody_of_this_name"
	refused := errors.New("no token today")
	for _, db := range []testdb.DB{testdb.MySQL(t), testdb.Postgres(t)} {
		var calls atomic.Int64
		var fails atomic.Bool
		user := ""
		before := func(_ context.Context, cfg any) error {
			calls.Add(1)
			switch c := cfg.(type) {
			case *mysql.Config:
				c.User = user
			case *pgx.ConnConfig:
				c.User = user
			default:
				t.Errorf("called with a %T", cfg)
			}
			if fails.Load() {
				return refused
			}
			return nil
		}
		wrong := db
		if cfg, err := mysql.ParseDSN(db.DSN); db.Driver == testdb.DriverMySQL && err == nil {
			user, cfg.User = cfg.User, nobody
			wrong.DSN = cfg.FormatDSN()
		} else if cfg, err := pgx.ParseConfig(db.DSN); err == nil {
			user, wrong.DSN = cfg.User, db.DSN+"&user="+nobody
		}
		if s, err := txlog.Open(t.Context(), db.Driver, wrong.DSN); err == nil {
			_ = s.Close()
			t.Fatalf("%s: without the function the log was opened", db.Driver)
		}
		s := open(t, wrong, txlog.WithBeforeConnect(before))
		if err := s.Add(t.Context(), time.Minute, unit("UPDATE a")); err != nil || calls.Load() == 0 {
			t.Errorf("%s: Add after %d calls: %v", db.Driver, calls.Load(), err)
		}
		fails.Store(true)
		if _, err := txlog.Open(t.Context(), db.Driver, wrong.DSN, txlog.WithBeforeConnect(before)); !errors.Is(err, refused) {
			t.Errorf("%s: Open while the function fails: %v", db.Driver, err)
		}
	}
	lite := testdb.SQLite(t)
	if _, err := txlog.Open(t.Context(), lite.Driver, lite.DSN, txlog.WithBeforeConnect(func(context.Context, any) error { return nil })); err == nil || !strings.Contains(err.Error(), "WithBeforeConnect") {
		t.Errorf("of SQLite: %v", err)
	}
	cfg, err := pgx.ParseConfig("host=127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	registered := stdlib.RegisterConnConfig(cfg)
	defer stdlib.UnregisterConnConfig(registered)
	if _, err := txlog.Open(t.Context(), "postgres", registered, txlog.WithBeforeConnect(func(context.Context, any) error { return nil })); err == nil || !strings.Contains(err.Error(), "registered configuration") {
		t.Errorf("a registered configuration takes no function: %v", err)
	}
}
