package rig

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
)

func DataSourceOf(t testing.TB, db testdb.DB) string {
	t.Helper()
	tgt := TargetOf(t, db)
	return tgt.DataSource
}

// Parked returns the parked units.
func (r *Rig) Parked() (why []string) {
	for _, u := range r.Logs() {
		if u.Parked {
			why = append(why, fmt.Sprintf("%s: %s %s (in doubt: %v)", u.ID, u.Statements[0].SQL, u.LastError, u.InDoubt))
		}
	}
	return why
}

// Abandon writes n entries of vanished writers, each with one statement. Its parameters are the
// number of the log, from 1, and then args. All leases end at once, so that no job finds only a
// part.
func (r *Rig) Abandon(n int, query string, args ...any) {
	r.T.Helper()
	tgt := TargetOf(r.T, r.DB)
	units := make([]*entry.Unit, n)
	for i := range units {
		values := []driver.NamedValue{{Ordinal: 1, Value: int64(i + 1)}}
		for j, a := range args {
			values = append(values, driver.NamedValue{Ordinal: j + 2, Value: a})
		}
		params, err := entry.EncodeParams(values)
		if err != nil {
			r.T.Fatal(err)
		}
		units[i] = &entry.Unit{
			ID: entry.NewID(), DataSource: tgt.DataSource, Settings: tgt.Settings,
			Statements: []entry.Statement{{SQL: r.Q(query), Params: params}},
		}
	}
	if err := r.Storage.Add(context.Background(), time.Minute, units...); err != nil {
		r.T.Fatal(err)
	}
	ids := make([]string, n) // not the entries whose removal is still under way
	for i, u := range units {
		ids[i] = u.ID
	}
	r.ExecLog("UPDATE transaction_log SET lease_until = 1, next_try_time = 1 WHERE id IN ('" + strings.Join(ids, "', '") + "')")
}

// JobFile is a configuration of bed-job for the rig.
func (r *Rig) JobFile(jobConfig string) string {
	r.T.Helper()
	return JobFile(r.T, r.LogDB, map[string]testdb.DB{DataSourceOf(r.T, r.DB): r.DB}, jobConfig)
}

// BlockTable keeps everybody from writing into a table of the target (on
// SQLite: into any) until free is called.
func (r *Rig) BlockTable(name string) (free func()) {
	r.T.Helper()
	conn, err := r.Bare.Conn(context.Background())
	if err != nil {
		r.T.Fatal(err)
	}
	lock, unlock := []string{"BEGIN IMMEDIATE"}, "ROLLBACK"
	switch r.DB.Driver {
	case testdb.DriverMySQL:
		lock, unlock = []string{"LOCK TABLES " + name + " WRITE"}, "UNLOCK TABLES"
	case testdb.DriverPostgres:
		lock = []string{"BEGIN", "LOCK TABLE " + name + " IN EXCLUSIVE MODE"}
	}
	for _, s := range lock {
		if _, err := conn.ExecContext(context.Background(), s); err != nil {
			r.T.Fatalf("%s: %v", s, err)
		}
	}
	free = sync.OnceFunc(func() {
		if _, err := conn.ExecContext(context.Background(), unlock); err != nil {
			r.T.Errorf("%s: %v", unlock, err)
		}
		_ = conn.Close()
	})
	r.T.Cleanup(free)
	return free
}

// Left is how many rows the log has.
func (r *Rig) Left() int { return r.CountLog("SELECT COUNT(*) FROM transaction_log") }

func (r *Rig) CountLog(query string) (n int) {
	r.T.Helper()
	if err := r.LogPool().QueryRow(query).Scan(&n); err != nil {
		r.T.Fatal(err)
	}
	return n
}

func (r *Rig) ExecLog(query string) {
	r.T.Helper()
	if _, err := r.LogPool().Exec(query); err != nil {
		r.T.Fatal(err)
	}
}

// LogPool is a pool of the bare driver on the log's database.
func (r *Rig) LogPool() *sql.DB {
	if r.bareLog == nil {
		r.bareLog = r.LogDB.Open(r.T)
	}
	return r.bareLog
}
