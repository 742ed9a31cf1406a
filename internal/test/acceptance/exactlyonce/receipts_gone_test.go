package exactlyonce

import (
	"errors"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestVanishedReceiptTableIsRecreatedOrReported(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.Account(100)
		r.Must(r.Wrapped, rig.AddOne)
		r.Exec("DROP TABLE bed_receipt")
		r.Must(r.Wrapped, rig.AddOne) // the attempt behind the one that found it gone makes it
		r.WantBalances(102)

		// A local transaction is not run again: its COMMIT is answered.
		tx, err := r.Wrapped.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if db.Driver != testdb.DriverSQLite { // where nobody can drop it meanwhile
			r.Exec("DROP TABLE bed_receipt")
		}
		r.Must(tx, rig.AddOne)
		err = tx.Commit()
		var table *dialect.ReceiptTableError
		switch {
		case db.Driver == testdb.DriverSQLite && err != nil:
			t.Errorf("COMMIT: %v", err)
		case db.Driver != testdb.DriverSQLite && (!errors.As(err, &table) || errors.Is(err, bedsql.ErrPending)):
			t.Errorf("COMMIT: %v, want a refusal that says what to run", err)
		}
		before := r.Balance(1)
		tx, err = r.Wrapped.Begin()
		if err != nil {
			t.Fatal(err)
		}
		r.Must(tx, rig.AddOne)
		if err := tx.Commit(); err != nil {
			t.Errorf("the next COMMIT: %v", err)
		}
		r.WantBalances(before + 1)
		r.WantNoLog()
	})
}

func TestVanishedUncreatableReceiptTableParksNothing(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.ReceiptTable()
		r.Account(100)
		limited, grant := r.WithoutCreate()
		grant("bed_receipt")
		limited = rig.Impatient(limited)
		wrapped := r.Open(limited.DSN)
		job := jobOf(r, limited)
		r.Must(wrapped, rig.AddOne)
		r.Cfg.NoSyncRetry = true
		once := r.Open(limited.DSN)
		leave := func() {
			free := r.BlockRow(1)
			rig.WantPending(t, r.Fails(once, rig.AddOne))
			free()
		}

		leave() // to the job, which learns of the table by it
		if report := round(r, job); report.Delivered != 1 {
			t.Fatalf("the job: %s", report)
		}
		r.WantBalances(102)

		leave()
		r.Exec("DROP TABLE bed_receipt")
		err := r.Fails(wrapped, rig.AddOne)
		var table *dialect.ReceiptTableError
		var rights *dialect.ReceiptRightsError
		if errors.Is(err, bedsql.ErrPending) || !errors.As(err, &table) && !errors.As(err, &rights) {
			t.Errorf("a write: %v, want one that says what to run", err)
		}
		for range 5 {
			if report := round(r, job); report.Parked != 0 || report.Delivered != 0 {
				t.Errorf("the job without the table: %s", report)
			}
		}
		for _, u := range r.Logs() {
			if u.Parked || u.Tries != 0 {
				t.Errorf("a unit is parked or was tried: %+v", u)
			}
		}
		r.ReceiptTable()
		grant("bed_receipt")
		drainWith(r, job)
		r.WantBalances(103)
		r.WantNoLog()
	})
}

// jobOf is a job that reaches the target by another DSN.
func jobOf(r *rig.Rig, db testdb.DB) *asyncjob.Job {
	r.T.Helper()
	tgt := rig.TargetOf(r.T, db)
	return r.JobFor(asyncjob.Targets{tgt.DataSource: tgt}, func(c *asyncjob.Config) { c.UnknownDataSourceDelay = time.Millisecond })
}

// round runs the job once.
func round(r *rig.Rig, job *asyncjob.Job) asyncjob.Report {
	r.T.Helper()
	report, err := job.RunOnce(r.T.Context())
	if err != nil {
		r.T.Fatal(err)
	}
	return report
}

// drainWith runs the job until the log is empty.
func drainWith(r *rig.Rig, job *asyncjob.Job) {
	r.T.Helper()
	rig.Eventually(r.T, "the job empties the log", func() bool {
		round(r, job)
		return len(r.Logs()) == 0
	})
}
