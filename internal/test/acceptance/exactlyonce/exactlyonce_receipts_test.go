package exactlyonce

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestMissingCreateRightNamesTheRemedy(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.Account(0)
		var grant func(string)
		r.DB, grant = r.WithoutCreate()
		r.Wrapped = r.Open(r.DB.DSN)
		ctx := context.Background()
		var statement string
		for name, write := range map[string]func() error{
			"a write": func() error {
				_, err := r.Wrapped.ExecContext(ctx, rig.AddOne)
				return err
			},
			"a local transaction": func() error {
				tx, err := r.Wrapped.BeginTx(ctx, nil)
				if err != nil {
					t.Fatalf("BEGIN, which may be for reading: %v", err)
				}
				defer func() { _ = tx.Rollback() }()
				_, err = tx.ExecContext(ctx, rig.AddOne)
				return err
			},
			"a staged write": func() error {
				ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
				if err != nil {
					t.Fatal(err)
				}
				defer soft.Discard()
				_, err = r.Wrapped.ExecContext(ctx, rig.AddOne)
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
		r.WantBalances(0)
		r.WantNoLog()
		if statement == "" {
			return
		}
		// Somebody runs it: from then on everything works, without the right
		// and without opening anything again.
		r.Exec(statement)
		grant("bed_receipt")
		r.Must(r.Wrapped, rig.AddOne)
		r.WantNoLog() // it is removed after the call returns
		r.Abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
		receipted(r)
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.WantBalances(2)
		r.WantNoLog()
	})
}

func TestReceiptBeingWrittenIsWaitedFor(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for _, commit := range []bool{true, false} {
			t.Run(map[bool]string{true: "it commits", false: "it is rolled back"}[commit], func(t *testing.T) {
				t.Parallel()
				r := rig.New(t, rig.FreshLike(t, db), rig.ExactlyOnce)
				r.ReceiptTable()
				r.Account(0)
				r.Abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
				receipted(r)
				end := inFlight(r, r.WantOneLog())
				round := make(chan asyncjob.Report, 1)
				job := r.Job()
				go func() {
					report, err := job.RunOnce(context.Background())
					if err != nil {
						t.Error(err)
					}
					round <- report
				}()
				rig.Eventually(t, "the job waits for the receipt", func() bool { return r.Waiting() == 1 })
				end(commit)
				if report := <-round; report.Delivered != 1 {
					t.Errorf("the job: %s", report)
				}
				r.WantBalances(1)
				r.WantNoLog()
			})
		}
	})
}

// inFlight begins an attempt of a unit of one increment, and leaves it open.
func inFlight(r *rig.Rig, u *entry.Unit) (end func(commit bool)) {
	r.T.Helper()
	tx, err := r.Bare.Begin()
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { _ = tx.Rollback() })
	r.Must(tx, "INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES (?, ?, ?, 0, 1, 9000000000000)",
		u.Receipt, u.ID, r.Storage.Identity())
	r.Must(tx, rig.AddOne)
	return func(commit bool) {
		r.T.Helper()
		f := tx.Rollback
		if commit {
			f = tx.Commit
		}
		if err := f(); err != nil {
			r.T.Fatal(err)
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
			r := rig.New(t, c.kind(t), rig.ExactlyOnce)
			r.ReceiptTable()
			r.Account(0)
			r.DB.DSN = rig.WithSetting(r.DB, c.setting)
			r.Abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
			receipted(r)
			if c.notReplayable != replayable {
				r.ExecLog("UPDATE transaction_log SET not_replayable = '" + c.notReplayable + "'")
			}
			end := inFlight(r, r.WantOneLog())
			job := r.Job(func(j *asyncjob.Config) {
				j.MaxDeliveryTryTimes = 1
				j.DeliveryTimeout = c.timeout
			})
			report, err := job.RunOnce(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if u := r.WantOneLog(); report.PushedBack != 1 || u.Tries != 0 || u.Parked {
				t.Errorf("the job: %s; tries %d, parked %v, last error %q", report, u.Tries, u.Parked, u.LastError)
			}
			end(true)
			r.Drain(job)
			r.WantBalances(1)
		})
	}
}

func TestUnreachableTargetAtReceiptLookupRefusesNothing(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, write := range map[string]func(r *rig.Rig) error{
			"a write": func(r *rig.Rig) error {
				_, err := r.Wrapped.Exec(rig.AddOne)
				return err
			},
			"a local transaction": func(r *rig.Rig) error {
				tx, err := r.Wrapped.Begin()
				if err != nil {
					return err
				}
				_, err = tx.Exec(rig.AddOne)
				return errors.Join(err, tx.Commit())
			},
			"a staged write": func(r *rig.Rig) error {
				ctx, soft, err := bedsql.Begin(context.Background(), bedsql.Staged())
				if err != nil {
					return err
				}
				_, err = r.Wrapped.ExecContext(ctx, rig.AddOne)
				return errors.Join(err, soft.End(ctx))
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db), rig.ExactlyOnce)
				r.Account(0)
				struck := p.CutBefore(testproxy.Text("bed_receipt"))
				err := write(r)
				<-struck
				applied := 1
				if err != nil && !errors.Is(err, bedsql.ErrPending) {
					// Only a write that has not begun may fail, with the driver's error.
					if r.T.Logf("the error: %v", err); name == "a write" || strings.Contains(err.Error(), "bed_receipt") {
						t.Errorf("a target out of reach for a moment made it fail: %v", err)
					}
					applied = 0
				}
				r.Drain(r.Job())
				r.WantBalances(applied)
			})
		}
	})
}

// A table made by an older schema is not taken for the right one.
func TestReceiptTableWithoutColumnNamesTheStatement(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.Account(0)
		r.ReceiptTable()
		r.Exec("ALTER TABLE bed_receipt DROP COLUMN log_gone")
		wrapped := r.Wrapped
		if db.Driver != testdb.DriverSQLite {
			limited, grant := r.WithoutCreate()
			grant("bed_receipt")
			wrapped = r.Open(limited.DSN)
		}
		_, err := wrapped.Exec(rig.AddOne)
		var unusable *dialect.ReceiptTableError
		if !errors.As(err, &unusable) || !strings.Contains(err.Error(), "log_gone") {
			t.Fatalf("a write: %v", err)
		}
		r.WantNoLog()
		r.WantBalances(0)
		r.Exec(unusable.Statement)
		r.Must(wrapped, rig.AddOne)
		r.WantBalances(1)
	})
}

// A connection changed by a PRAGMA still knows the table of receipts.
func TestPragmaInATransactionKeepsItsReceipt(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.SQLite(t), rig.ExactlyOnce)
	r.Account(0)
	r.Wrapped.SetMaxOpenConns(1)
	// This changes the connection before its first look for the table; the cases change it again.
	if _, err := r.Wrapped.Exec("PRAGMA recursive_triggers = ON"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wrapped.Exec("PRAGMA recursive_triggers = OFF"); err != nil {
		t.Fatal(err)
	}
	cases := [][]string{
		{"PRAGMA recursive_triggers = ON", rig.AddOne}, {rig.AddOne, "PRAGMA recursive_triggers = OFF"},
		{"PRAGMA recursive_triggers = ON", "PRAGMA cell_size_check = ON", rig.AddOne}, {"PRAGMA recursive_triggers = OFF", "PRAGMA cell_size_check = OFF", rig.AddOne},
	}
	for _, texts := range cases {
		tx, err := r.Wrapped.BeginTx(t.Context(), nil)
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
	if b, n := r.Balance(1), r.Count("SELECT count(*) FROM bed_receipt"); b != len(cases) || n != len(cases) {
		t.Errorf("the balance is %d, %d receipts", b, n)
	}
}
