package acceptance

import (
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

// withDefaults returns a database on its own server with these defaults for new sessions, and an
// account subject to init_connect.
func withDefaults(t *testing.T, args ...string) testdb.DB {
	t.Helper()
	server := testdb.PrivateMariaDB(t, args...)
	db := server.DB(t)
	admin := db.Open(t)
	for _, text := range []string{"CREATE USER app@'127.0.0.1'", "GRANT ALL ON *.* TO app@'127.0.0.1'", "REVOKE SUPER, CONNECTION ADMIN ON *.* FROM app@'127.0.0.1'"} {
		if _, err := admin.Exec(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	cfg, err := mysql.ParseDSN(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	cfg.User = "app"
	db.DSN = cfg.FormatDSN()
	return db
}

func TestAnsweredWriteIsCommittedWhateverTheServerDefaults(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"autocommit off":                 {"--autocommit=0"},
		"autocommit off by init_connect": {"--init-connect=SET autocommit=0"},
		"COMMIT chains":                  {"--completion-type=CHAIN"},
		"COMMIT releases":                {"--completion-type=RELEASE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := withDefaults(t, args...)
			for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
				var hook *logtest.Hook
				r := newRigWithLog(t, db, testdb.MySQL(t), collecting(&hook), noSyncRetry, func(c *bedsql.Config) { c.Guarantee = guarantee })
				bare, err := r.bare.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, text := range []string{"SET autocommit = 1, completion_type = 0, lock_wait_timeout = 3, innodb_lock_wait_timeout = 3", "DROP TABLE IF EXISTS account",
					"CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)", "INSERT INTO account VALUES (1, 100), (2, 100), (3, 100), (4, 100)"} {
					if _, err := bare.ExecContext(t.Context(), text); err != nil {
						t.Fatalf("%s: %v", text, err)
					}
				}
				r.wrapped.SetMaxOpenConns(1)
				tx, err := r.wrapped.Begin()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := tx.Exec("UPDATE account SET balance = 90 WHERE id = 1"); err != nil {
					t.Error(err)
				}
				if err := tx.Commit(); err != nil {
					t.Error(err)
				}
				if _, err := r.wrapped.Exec("UPDATE account SET balance = ? WHERE id = 2", 90); err != nil {
					t.Error(err)
				}
				if _, err := r.wrapped.Exec("UPDATE account SET balance = 90 WHERE id = 3"); err != nil {
					t.Error(err)
				}
				if err := r.wrapped.Close(); err != nil {
					t.Error(err)
				}
				told := strings.Join(warnings(hook), "\n")
				if !strings.Contains(told, "uncommitted") {
					t.Errorf("the operator read %q", told)
				}

				// The job.
				retrying := r.open(impatient(db).DSN)
				if _, err := bare.ExecContext(t.Context(), "START TRANSACTION"); err != nil {
					t.Fatal(err)
				}
				if _, err := bare.ExecContext(t.Context(), "SELECT * FROM account WHERE id = 4 FOR UPDATE"); err != nil {
					t.Fatal(err)
				}
				_, err = retrying.Exec("UPDATE account SET balance = 90 WHERE id = 4")
				wantPending(t, err)
				if _, err := bare.ExecContext(t.Context(), "ROLLBACK"); err != nil {
					t.Fatal(err)
				}
				job := r.job()
				report, err := job.RunOnce(t.Context())
				if err != nil || report.Delivered != 1 {
					t.Errorf("the job: %s, %v", report, err)
				}
				if err := job.Close(); err != nil {
					t.Error(err)
				}
				var off int
				if err := bare.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM account WHERE balance <> 90").Scan(&off); err != nil || off != 0 {
					t.Errorf("%d of the writes that were answered are not there (%v)", off, err)
				}
				r.wantNoLog()
				_ = bare.Close()
			}
		})
	}
}
