package acceptance

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// session returns the server's number for the session of one connection.
func (r *rig) session(on interface {
	QueryRow(string, ...any) *sql.Row
}) int {
	r.t.Helper()
	query := "SELECT CONNECTION_ID()"
	if r.db.Driver == testdb.DriverPostgres {
		query = "SELECT pg_backend_pid()"
	}
	var id int
	if err := on.QueryRow(query).Scan(&id); err != nil {
		r.t.Fatal(err)
	}
	return id
}

// killSession makes the server end a session and waits until it is gone.
func (r *rig) killSession(id int) {
	r.t.Helper()
	kill, gone := "KILL %d", "SELECT count(*) FROM information_schema.processlist WHERE id = %d"
	if r.db.Driver == testdb.DriverPostgres {
		kill, gone = "SELECT pg_terminate_backend(%d)", "SELECT count(*) FROM pg_stat_activity WHERE pid = %d"
	}
	r.exec(fmt.Sprintf(kill, id))
	eventually(r.t, "the killed session is gone", func() bool { return r.count(fmt.Sprintf(gone, id)) == 0 })
}

func TestWriteOnKilledConnectionIsDeliveredOnce(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		adds := 0
		r := newRig(t, db, func(c *bedsql.Config) { c.Storage = countAdds(c.Storage, &adds) })
		r.account(100)
		r.wrapped.SetMaxOpenConns(1)
		st, err := r.wrapped.Prepare(r.q("UPDATE account SET balance = balance - ? WHERE id = ?"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		want := 100
		for name, run := range map[string]func() error{
			"text": func() error {
				_, err := r.wrapped.Exec("UPDATE account SET balance = balance - 1 WHERE id = 1")
				return err
			},
			"arguments": func() error {
				_, err := r.wrapped.Exec(r.q("UPDATE account SET balance = balance - ? WHERE id = ?"), 1, 1)
				return err
			},
			"prepared": func() error {
				_, err := st.Exec(1, 1)
				return err
			},
		} {
			before, counted := adds, r.counters.Delivered.Load()
			r.killSession(r.session(r.wrapped))
			if err := run(); err != nil {
				t.Errorf("%s: %v, want it delivered by a retry", name, err)
			}
			want--
			r.wantBalances(want)
			r.wantNoLog()
			if adds-before != 1 || r.counters.Delivered.Load()-counted != 1 {
				t.Errorf("%s: %d entries for one write, %d deliveries counted", name, adds-before, r.counters.Delivered.Load()-counted)
			}
		}
	})
}

func TestRestartedServerIsWrittenToOnce(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB, ...string) *testdb.Server{
		"mysql": testdb.PrivateMariaDB, "postgres": testdb.PrivatePostgres,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			r := newRigWithLog(t, server.DB(t), testdb.SQLite(t))
			r.account(100)
			r.must(r.wrapped, "UPDATE account SET balance = balance - ? WHERE id = ?", 1, 1)
			server.Kill()
			_, err := r.wrapped.Exec(r.q("UPDATE account SET balance = balance - ? WHERE id = ?"), 10, 1)
			r.wantOutcome(pending, err)
			if errors.Is(err, driver.ErrBadConn) {
				t.Errorf("ErrBadConn shows through: %v", err)
			}
			server.Start()
			if report := r.runOnce(); report.Delivered != 1 {
				t.Errorf("the job: %s", report)
			}
			// The pool holds connections of the server's former life.
			r.must(r.wrapped, "UPDATE account SET balance = balance - ? WHERE id = ?", 100, 1)
			r.bare.SetMaxIdleConns(0)
			r.wantBalances(-11)
			r.wantNoLog()
		})
	}
}

func TestErrSkipOfTheDriverIsNoFailure(t *testing.T) {
	t.Parallel()
	base := testdb.MySQL(t)
	for _, interpolate := range []string{"true", "false"} {
		db := withParam(base, "interpolateParams", interpolate)
		p := testproxy.New(t, db.Addr())
		r := newRig(t, db)
		r.exec("DROP TABLE IF EXISTS account")
		r.account(100)
		through := r.open(db.Via(p.Addr()).DSN)
		executions := p.Count(testproxy.MySQLExecute)
		texts := p.Count(testproxy.Text("UPDATE account"))
		if _, err := through.Exec("UPDATE account SET balance = balance - ? WHERE id = ?", 1, 1); err != nil {
			t.Fatal(err)
		}
		wantExecutions := 1
		if interpolate == "true" {
			wantExecutions = 0
		}
		if executions() != wantExecutions || texts() != 1 {
			t.Errorf("interpolateParams=%s: %d executions of prepared statements, the text was sent %d times", interpolate, executions(), texts())
		}
		r.wantBalances(99)
		r.wantNoLog()
	}
}

func TestErrBadConnOfADeadPoolDoesNotEscape(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.account(100)
		// database/sql tries two pooled connections before it dials anew: all of
		// these are dead, and nothing can be dialled.
		const idle = 4
		r.wrapped.SetMaxIdleConns(idle)
		var conns []*sql.Conn
		for range idle {
			c := r.conn()
			r.must(c, "UPDATE account SET balance = ? WHERE id = ?", 100, 1)
			conns = append(conns, c)
		}
		for _, c := range conns {
			_ = c.Close()
		}
		p.Refuse()
		p.CutAll()
		_, err := r.wrapped.Exec(r.q("UPDATE account SET balance = balance - ? WHERE id = ?"), 1, 1)
		r.wantOutcome(pending, err)
		if errors.Is(err, driver.ErrBadConn) {
			t.Errorf("ErrBadConn shows through: %v", err)
		}
		r.wantOneLog()
		p.Accept()
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.wantBalances(99)
	})
}
