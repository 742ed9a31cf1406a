package acceptance

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// withoutCreate returns the target for an account that may read and write existing tables but
// create none. grant gives it a new table.
func (r *rig) withoutCreate() (limited testdb.DB, grant func(table string)) {
	r.t.Helper()
	limited = r.db
	const password = "limited"
	name := "lim_" + limited.Name[max(0, len(limited.Name)-24):]
	if r.db.Driver == testdb.DriverMySQL {
		r.exec("CREATE USER "+name+" IDENTIFIED BY '"+password+"'", "GRANT SELECT, INSERT, UPDATE, DELETE ON "+limited.Name+".* TO "+name)
		r.t.Cleanup(func() { r.exec("DROP USER " + name) })
		cfg, err := mysql.ParseDSN(limited.DSN)
		if err != nil {
			r.t.Fatal(err)
		}
		cfg.User, cfg.Passwd = name, password
		limited.DSN = cfg.FormatDSN()
		return limited, func(string) {}
	}
	grant = func(table string) { r.exec("GRANT SELECT, INSERT, UPDATE, DELETE ON " + table + " TO " + name) }
	r.exec("REVOKE CREATE ON SCHEMA public FROM PUBLIC", "CREATE ROLE "+name+" LOGIN PASSWORD '"+password+"'")
	r.t.Cleanup(func() { r.exec("DROP OWNED BY "+name, "DROP ROLE "+name) })
	grant("account")
	if u, err := url.Parse(limited.DSN); err == nil && u.Host != "" {
		u.User = url.UserPassword(name, password)
		limited.DSN = u.String()
	} else {
		limited.DSN += " user=" + name + " password=" + password
	}
	return limited, grant
}

func TestMissingCreateRightNamesTheRemedy(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, exactlyOnce)
		r.account(0)
		var grant func(string)
		r.db, grant = r.withoutCreate()
		r.wrapped = r.open(r.db.DSN)
		ctx := context.Background()
		var statement string
		for name, write := range map[string]func() error{
			"a write": func() error {
				_, err := r.wrapped.ExecContext(ctx, addOne)
				return err
			},
			"a local transaction": func() error {
				tx, err := r.wrapped.BeginTx(ctx, nil)
				if err != nil {
					t.Fatalf("BEGIN, which may be for reading: %v", err)
				}
				defer func() { _ = tx.Rollback() }()
				_, err = tx.ExecContext(ctx, addOne)
				return err
			},
			"a staged write": func() error {
				ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
				if err != nil {
					t.Fatal(err)
				}
				defer soft.Discard()
				_, err = r.wrapped.ExecContext(ctx, addOne)
				return err
			},
		} {
			err := write()
			var table *dialect.ReceiptTableError
			if !errors.As(err, &table) || !strings.Contains(table.Statement, "CREATE TABLE") || !strings.Contains(err.Error(), table.Statement) {
				t.Errorf("%s: %v, want a ReceiptTableError with the statement to run", name, err)
				continue
			}
			statement = table.Statement
		}
		r.wantBalances(0)
		r.wantNoLog()
		if statement == "" {
			return
		}
		// Somebody runs it: from then on everything works, without the right
		// and without opening anything again.
		r.exec(statement)
		grant("bed_receipt")
		r.must(r.wrapped, addOne)
		r.wantNoLog() // it is removed after the call returns
		r.abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
		r.receipted()
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.wantBalances(2)
		r.wantNoLog()
	})
}

func TestReceiptBeingWrittenIsWaitedFor(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for _, commit := range []bool{true, false} {
			t.Run(map[bool]string{true: "it commits", false: "it is rolled back"}[commit], func(t *testing.T) {
				t.Parallel()
				r := newRig(t, freshLike(t, db), exactlyOnce)
				r.receiptTable()
				r.account(0)
				r.abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
				r.receipted()
				end := r.inFlight(r.wantOneLog())
				round := make(chan asyncjob.Report, 1)
				job := r.job()
				go func() {
					report, err := job.RunOnce(context.Background())
					if err != nil {
						t.Error(err)
					}
					round <- report
				}()
				eventually(t, "the job waits for the receipt", func() bool { return r.waiting() == 1 })
				end(commit)
				if report := <-round; report.Delivered != 1 {
					t.Errorf("the job: %s", report)
				}
				r.wantBalances(1)
				r.wantNoLog()
			})
		}
	})
}

// inFlight begins an attempt of a unit of one increment, and leaves it open.
func (r *rig) inFlight(u *txlog.Unit) (end func(commit bool)) {
	r.t.Helper()
	tx, err := r.bare.Begin()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = tx.Rollback() })
	r.must(tx, "INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES (?, ?, ?, 0, 1, 9000000000000)",
		u.Receipt, u.ID, r.storage.Identity())
	r.must(tx, addOne)
	return func(commit bool) {
		r.t.Helper()
		f := tx.Rollback
		if commit {
			f = tx.Commit
		}
		if err := f(); err != nil {
			r.t.Fatal(err)
		}
	}
}

func TestLockedReceiptIsNotATry(t *testing.T) {
	t.Parallel()
	// Answers of the database are distinguished from a wait for the unit's own rows in every form
	// of sending. The job's own timeout is not, if the unit was sent in one message.
	const replayable, once = "", "it read before it wrote"
	for name, c := range map[string]struct {
		kind          func(testing.TB) testdb.DB
		setting       string
		timeout       time.Duration
		notReplayable string
	}{
		"mysql, its lock wait ends":                     {testdb.MySQL, "innodb_lock_wait_timeout=1", 0, replayable},
		"mysql, its lock wait ends, decided":            {testdb.MySQL, "innodb_lock_wait_timeout=1", 0, once},
		"postgres, its lock_timeout ends":               {testdb.Postgres, "lock_timeout=300ms", 0, replayable},
		"postgres, its lock_timeout ends, decided":      {testdb.Postgres, "lock_timeout=300ms", 0, once},
		"postgres, the job's own timeout ends, decided": {testdb.Postgres, "", 4 * time.Second, once},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.kind(t), exactlyOnce)
			r.receiptTable()
			r.account(0)
			r.db.DSN = withSetting(r.db, c.setting)
			r.abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
			r.receipted()
			if c.notReplayable != replayable {
				r.execLog("UPDATE transaction_log SET not_replayable = '" + c.notReplayable + "'")
			}
			end := r.inFlight(r.wantOneLog())
			job := r.job(func(j *asyncjob.Config) {
				j.MaxDeliveryTryTimes = 1
				j.DeliveryTimeout = c.timeout
			})
			report, err := job.RunOnce(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if u := r.wantOneLog(); report.PushedBack != 1 || u.Tries != 0 || u.Parked {
				t.Errorf("the job: %s; tries %d, parked %v, last error %q", report, u.Tries, u.Parked, u.LastError)
			}
			end(true)
			r.drain(job)
			r.wantBalances(1)
		})
	}
}

// withSetting adds a setting of the session to a DSN.
func withSetting(db testdb.DB, setting string) string {
	switch {
	case setting == "":
		return db.DSN
	case db.Driver == testdb.DriverPostgres && !strings.Contains(db.DSN, "://"):
		return db.DSN + " " + setting
	case strings.Contains(db.DSN, "?"):
		return db.DSN + "&" + setting
	default:
		return db.DSN + "?" + setting
	}
}

func TestUnreachableTargetAtReceiptLookupRefusesNothing(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, write := range map[string]func(r *rig) error{
			"a write": func(r *rig) error {
				_, err := r.wrapped.Exec(addOne)
				return err
			},
			"a local transaction": func(r *rig) error {
				tx, err := r.wrapped.Begin()
				if err != nil {
					return err
				}
				_, err = tx.Exec(addOne)
				return errors.Join(err, tx.Commit())
			},
			"a staged write": func(r *rig) error {
				ctx, soft, err := bedsql.Begin(context.Background(), bedsql.Staged())
				if err != nil {
					return err
				}
				_, err = r.wrapped.ExecContext(ctx, addOne)
				return errors.Join(err, soft.End(ctx))
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r, p := newRigBehindProxy(t, freshLike(t, db), exactlyOnce)
				r.account(0)
				struck := p.CutBefore(testproxy.Text("bed_receipt"))
				err := write(r)
				<-struck
				applied := 1
				if err != nil && !errors.Is(err, bedsql.ErrPending) {
					// Only a write that has not begun may fail, with the driver's error.
					if r.t.Logf("the error: %v", err); name == "a write" || strings.Contains(err.Error(), "bed_receipt") {
						t.Errorf("a target out of reach for a moment made it fail: %v", err)
					}
					applied = 0
				}
				r.drain(r.job())
				r.wantBalances(applied)
			})
		}
	})
}

// A table made by an older schema is not taken for the right one.
func TestReceiptTableWithoutColumnNamesTheStatement(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, exactlyOnce)
		r.account(0)
		r.receiptTable()
		r.exec("ALTER TABLE bed_receipt DROP COLUMN log_gone")
		wrapped := r.wrapped
		if db.Driver != testdb.DriverSQLite {
			limited, grant := r.withoutCreate()
			grant("bed_receipt")
			wrapped = r.open(limited.DSN)
		}
		_, err := wrapped.Exec(addOne)
		var unusable *dialect.ReceiptTableError
		if !errors.As(err, &unusable) || !strings.Contains(err.Error(), "log_gone") {
			t.Fatalf("a write: %v", err)
		}
		r.wantNoLog()
		r.wantBalances(0)
		r.exec(unusable.Statement)
		r.must(wrapped, addOne)
		r.wantBalances(1)
	})
}

// A connection changed by a PRAGMA still knows the table of receipts.
func TestPragmaInATransactionKeepsItsReceipt(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.SQLite(t), exactlyOnce)
	r.account(0)
	r.wrapped.SetMaxOpenConns(1)
	// This changes the connection before its first look for the table; the cases change it again.
	if _, err := r.wrapped.Exec("PRAGMA recursive_triggers = ON"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.wrapped.Exec("PRAGMA recursive_triggers = OFF"); err != nil {
		t.Fatal(err)
	}
	cases := [][]string{
		{"PRAGMA recursive_triggers = ON", addOne}, {addOne, "PRAGMA recursive_triggers = OFF"},
		{"PRAGMA recursive_triggers = ON", "PRAGMA cell_size_check = ON", addOne}, {"PRAGMA recursive_triggers = OFF", "PRAGMA cell_size_check = OFF", addOne},
	}
	for _, texts := range cases {
		tx, err := r.wrapped.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			if _, err := tx.ExecContext(t.Context(), text); err != nil {
				t.Fatalf("%v: %v", texts, err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	if b, n := r.balance(1), r.count("SELECT count(*) FROM bed_receipt"); b != len(cases) || n != len(cases) {
		t.Errorf("the balance is %d, %d receipts", b, n)
	}
}
