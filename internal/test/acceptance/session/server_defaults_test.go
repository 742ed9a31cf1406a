package session

import (
	"strings"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

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
			db := rig.WithDefaults(t, args...)
			for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
				var hook *logtest.Hook
				r := rig.NewWithLog(t, db, testdb.NewLog(t, testdb.DriverMySQL), rig.Collecting(&hook), rig.NoSyncRetry, func(c *bedsql.Config) { c.Guarantee = guarantee })
				bare, err := r.Bare.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, text := range []string{"SET autocommit = 1, completion_type = 0, lock_wait_timeout = 30, innodb_lock_wait_timeout = 30", "DROP TABLE IF EXISTS account",
					"CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)", "INSERT INTO account VALUES (1, 100), (2, 100), (3, 100), (4, 100)"} {
					if _, err := bare.ExecContext(t.Context(), text); err != nil {
						t.Fatalf("%s: %v", text, err)
					}
				}
				r.Wrapped.SetMaxOpenConns(1)
				tx, err := r.Wrapped.Begin()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := tx.Exec("UPDATE account SET balance = 90 WHERE id = 1"); err != nil {
					t.Error(err)
				}
				if err := tx.Commit(); err != nil {
					t.Error(err)
				}
				if _, err := r.Wrapped.Exec("UPDATE account SET balance = ? WHERE id = 2", 90); err != nil {
					t.Error(err)
				}
				if _, err := r.Wrapped.Exec("UPDATE account SET balance = 90 WHERE id = 3"); err != nil {
					t.Error(err)
				}
				if err := r.Wrapped.Close(); err != nil {
					t.Error(err)
				}
				told := strings.Join(rig.Warnings(hook), "\n")
				if !strings.Contains(told, "uncommitted") {
					t.Errorf("the operator read %q", told)
				}

				// The job.
				retrying := r.Open(rig.Impatient(db).DSN)
				if _, err := bare.ExecContext(t.Context(), "START TRANSACTION"); err != nil {
					t.Fatal(err)
				}
				if _, err := bare.ExecContext(t.Context(), "SELECT * FROM account WHERE id = 4 FOR UPDATE"); err != nil {
					t.Fatal(err)
				}
				_, err = retrying.Exec("UPDATE account SET balance = 90 WHERE id = 4")
				rig.WantPending(t, err)
				if _, err := bare.ExecContext(t.Context(), "ROLLBACK"); err != nil {
					t.Fatal(err)
				}
				job := r.Job()
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
				r.WantNoLog()
				_ = bare.Close()
			}
		})
	}
}
