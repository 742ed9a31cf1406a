package acceptance

import (
	"errors"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestVanishedReceiptTableIsRecreatedOrReported(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, exactlyOnce)
		r.account(100)
		r.must(r.wrapped, addOne)
		r.exec("DROP TABLE bed_receipt")
		r.must(r.wrapped, addOne) // the attempt behind the one that found it gone makes it
		r.wantBalances(102)

		// A local transaction is not run again: its COMMIT is answered.
		tx, err := r.wrapped.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if db.Driver != testdb.DriverSQLite { // where nobody can drop it meanwhile
			r.exec("DROP TABLE bed_receipt")
		}
		r.must(tx, addOne)
		err = tx.Commit()
		var table *dialect.ReceiptTableError
		switch {
		case db.Driver == testdb.DriverSQLite && err != nil:
			t.Errorf("COMMIT: %v", err)
		case db.Driver != testdb.DriverSQLite && (!errors.As(err, &table) || errors.Is(err, bedsql.ErrPending)):
			t.Errorf("COMMIT: %v, want a refusal that says what to run", err)
		}
		before := r.balance(1)
		tx, err = r.wrapped.Begin()
		if err != nil {
			t.Fatal(err)
		}
		r.must(tx, addOne)
		if err := tx.Commit(); err != nil {
			t.Errorf("the next COMMIT: %v", err)
		}
		r.wantBalances(before + 1)
		r.wantNoLog()
	})
}

func TestVanishedUncreatableReceiptTableParksNothing(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, exactlyOnce)
		r.receiptTable()
		r.account(100)
		limited, grant := r.withoutCreate()
		grant("bed_receipt")
		limited = impatient(limited)
		wrapped := r.open(limited.DSN)
		job := r.jobOf(limited)
		r.must(wrapped, addOne)
		r.cfg.NoSyncRetry = true
		once := r.open(limited.DSN)
		leave := func() {
			free := r.blockRow(1)
			wantPending(t, r.fails(once, addOne))
			free()
		}

		leave() // to the job, which learns of the table by it
		if report := r.round(job); report.Delivered != 1 {
			t.Fatalf("the job: %s", report)
		}
		r.wantBalances(102)

		leave()
		r.exec("DROP TABLE bed_receipt")
		err := r.fails(wrapped, addOne)
		var table *dialect.ReceiptTableError
		var rights *dialect.ReceiptRightsError
		if errors.Is(err, bedsql.ErrPending) || !errors.As(err, &table) && !errors.As(err, &rights) {
			t.Errorf("a write: %v, want one that says what to run", err)
		}
		for range 5 {
			if report := r.round(job); report.Parked != 0 || report.Delivered != 0 {
				t.Errorf("the job without the table: %s", report)
			}
		}
		for _, u := range r.logs() {
			if u.Parked || u.Tries != 0 {
				t.Errorf("a unit is parked or was tried: %+v", u)
			}
		}
		r.receiptTable()
		grant("bed_receipt")
		r.drainWith(job)
		r.wantBalances(103)
		r.wantNoLog()
	})
}

// jobOf is a job that reaches the target by another DSN.
func (r *rig) jobOf(db testdb.DB) *asyncjob.Job {
	r.t.Helper()
	tgt := targetOf(r.t, db)
	return r.jobFor(asyncjob.Targets{tgt.DataSource: tgt}, func(c *asyncjob.Config) { c.UnknownDataSourceDelay = time.Millisecond })
}

// round runs the job once.
func (r *rig) round(job *asyncjob.Job) asyncjob.Report {
	r.t.Helper()
	report, err := job.RunOnce(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return report
}

// drainWith runs the job until the log is empty.
func (r *rig) drainWith(job *asyncjob.Job) {
	r.t.Helper()
	eventually(r.t, "the job empties the log", func() bool {
		r.round(job)
		return len(r.logs()) == 0
	})
}
