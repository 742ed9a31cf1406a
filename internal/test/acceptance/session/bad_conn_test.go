package session

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// killSession makes the server end a session and waits until it is gone.
func killSession(r *rig.Rig, id int) {
	r.T.Helper()
	kill := "KILL %d"
	if r.DB.Driver == testdb.DriverPostgres {
		kill = "SELECT pg_terminate_backend(%d)"
	}
	r.Exec(fmt.Sprintf(kill, id))
	awaitEnd(r, id)
}

func awaitEnd(r *rig.Rig, session int) {
	r.T.Helper()
	there := "SELECT count(*) FROM information_schema.processlist WHERE id = %d"
	if r.DB.Driver == testdb.DriverPostgres {
		there = "SELECT count(*) FROM pg_stat_activity WHERE pid = %d"
	}
	rig.Eventually(r.T, "the session is gone", func() bool { return r.Count(fmt.Sprintf(there, session)) == 0 })
}

func TestWriteOnKilledConnectionIsDeliveredOnce(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		adds := 0
		r := rig.New(t, db, func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
		r.Account(100)
		r.Wrapped.SetMaxOpenConns(1)
		st, err := r.Wrapped.Prepare(r.Q("UPDATE account SET balance = balance - ? WHERE id = ?"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		want := 100
		for name, run := range map[string]func() error{
			"text": func() error {
				_, err := r.Wrapped.Exec("UPDATE account SET balance = balance - 1 WHERE id = 1")
				return err
			},
			"arguments": func() error {
				_, err := r.Wrapped.Exec(r.Q("UPDATE account SET balance = balance - ? WHERE id = ?"), 1, 1)
				return err
			},
			"prepared": func() error {
				_, err := st.Exec(1, 1)
				return err
			},
		} {
			before, counted := adds, r.Counters.Delivered.Load()
			killSession(r, r.Session(r.Wrapped))
			if err := run(); err != nil {
				t.Errorf("%s: %v, want it delivered by a retry", name, err)
			}
			want--
			r.WantBalances(want)
			r.WantNoLog()
			if adds-before != 1 || r.Counters.Delivered.Load()-counted != 1 {
				t.Errorf("%s: %d entries for one write, %d deliveries counted", name, adds-before, r.Counters.Delivered.Load()-counted)
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
			r := rig.NewWithLog(t, server.DB(t), testdb.SQLite(t))
			r.Account(100)
			r.Must(r.Wrapped, "UPDATE account SET balance = balance - ? WHERE id = ?", 1, 1)
			server.Kill()
			_, err := r.Wrapped.Exec(r.Q("UPDATE account SET balance = balance - ? WHERE id = ?"), 10, 1)
			r.WantOutcome(rig.Pending, err)
			if errors.Is(err, driver.ErrBadConn) {
				t.Errorf("ErrBadConn shows through: %v", err)
			}
			server.Start()
			if report := r.RunOnce(); report.Delivered != 1 {
				t.Errorf("the job: %s", report)
			}
			// The pool holds connections of the server's former life.
			r.Must(r.Wrapped, "UPDATE account SET balance = balance - ? WHERE id = ?", 100, 1)
			r.Bare.SetMaxIdleConns(0)
			r.WantBalances(-11)
			r.WantNoLog()
		})
	}
}

func TestErrSkipOfTheDriverIsNoFailure(t *testing.T) {
	t.Parallel()
	base := testdb.MySQL(t)
	for _, interpolate := range []string{"true", "false"} {
		db := rig.WithParam(base, "interpolateParams", interpolate)
		p := testproxy.New(t, db.Addr())
		r := rig.New(t, db)
		r.Exec("DROP TABLE IF EXISTS account")
		r.Account(100)
		through := r.Open(db.Via(p.Addr()).DSN)
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
		r.WantBalances(99)
		r.WantNoLog()
	}
}

func TestErrBadConnOfADeadPoolDoesNotEscape(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(100)
		// database/sql tries two pooled connections before it dials anew: all of
		// these are dead, and nothing can be dialled.
		const idle = 4
		r.Wrapped.SetMaxIdleConns(idle)
		var conns []*sql.Conn
		for range idle {
			c := r.Conn()
			r.Must(c, "UPDATE account SET balance = ? WHERE id = ?", 100, 1)
			conns = append(conns, c)
		}
		for _, c := range conns {
			_ = c.Close()
		}
		p.Refuse()
		p.CutAll()
		_, err := r.Wrapped.Exec(r.Q("UPDATE account SET balance = balance - ? WHERE id = ?"), 1, 1)
		r.WantOutcome(rig.Pending, err)
		if errors.Is(err, driver.ErrBadConn) {
			t.Errorf("ErrBadConn shows through: %v", err)
		}
		r.WantOneLog()
		p.Accept()
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.WantBalances(99)
	})
}
