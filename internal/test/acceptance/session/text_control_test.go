package session

import (
	"context"
	"errors"
	"strings"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// controls begin or end a transaction. Some of them fail outside of one.
var controls = testdb.By[[]string]{
	MySQL: []string{"BEGIN", "/* a comment */ start transaction;", "COMMIT", "COMMIT AND CHAIN", "ROLLBACK", "SAVEPOINT a", "SET autocommit = 0",
		"SET autocommit = 1", "SET @@session.autocommit = @@global.autocommit", "SET sql_mode = '', autocommit = 0"},
	Postgres: []string{"BEGIN", "START TRANSACTION", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT a", "PREPARE TRANSACTION 'a'"},
	SQLite:   []string{"BEGIN", "BEGIN IMMEDIATE", "COMMIT", "END", "ROLLBACK", "SAVEPOINT a"},
}

// controlled is a rig that keeps its log lines and counts what is logged.
type controlled struct {
	*rig.Rig
	lines *logtest.Hook
	adds  int
}

func newControlled(t *testing.T, db testdb.DB, change ...func(*bedsql.Config)) *controlled {
	logger, lines := logtest.NewNullLogger()
	r := &controlled{lines: lines}
	r.Rig = rig.New(t, db, append(change, func(c *bedsql.Config) { c.Logger, c.Storage = logger, rig.CountAdds(c.Storage, &r.adds) })...)
	return r
}

// eachControl gives each of them a rig with one connection, under each guarantee.
func eachControl(t *testing.T, f func(t *testing.T, r *controlled, control string), change ...func(*bedsql.Config)) {
	t.Helper()
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for guarantee, once := range map[string]func(*bedsql.Config){"at least once": func(*bedsql.Config) {}, "exactly once": rig.ExactlyOnce} {
			for _, control := range controls.For(db.Driver) {
				t.Run(guarantee+" "+control, func(t *testing.T) {
					r := newControlled(t, rig.FreshLike(t, db), append(change, once)...)
					r.ReceiptTable()
					r.Account(100, 100)
					r.Wrapped.SetMaxOpenConns(1)
					f(t, r, control)
				})
			}
		}
	})
}

// wantUnlogged checks that n writes ran unlogged, with one warning that says why.
func (r *controlled) wantUnlogged(n uint64) {
	r.T.Helper()
	if got := r.Counters.PassedThrough.Load(); got != n {
		r.T.Errorf("%d writes were counted as unlogged, want %d", got, n)
	}
	if got := r.Counters.Delivered.Load(); got != 0 {
		r.T.Errorf("%d writes were counted as delivered", got)
	}
	warned := 0
	for _, e := range r.lines.AllEntries() {
		if why, _ := e.Data["reason"].(string); strings.Contains(e.Message, "unlogged and unretried") && strings.Contains(why, "began or ended a transaction") {
			warned++
		}
	}
	if warned != 1 {
		r.T.Errorf("%d warnings of unlogged writes, want 1", warned)
	}
	r.WantNoLog()
}

func TestTransactionControlByTextPins(t *testing.T) {
	eachControl(t, func(t *testing.T, r *controlled, control string) {
		conn := r.Conn()
		_, _ = conn.ExecContext(t.Context(), control)
		r.Must(conn, rig.SetBalance, 1, 1)
		r.Must(conn, rig.SetBalance, 2, 2)
		r.wantUnlogged(2)
		_, _ = conn.ExecContext(t.Context(), "COMMIT")
		r.WantBalances(1, 2)
		if r.adds != 0 {
			t.Errorf("%d units were logged", r.adds)
		}
		// The next user of the pool meets neither a transaction nor the pin.
		r.Must(conn, "BEGIN")
		r.Must(conn, rig.SetBalance, 3, 1)
		_ = conn.Close()
		r.Must(r.Wrapped, rig.SetBalance, 4, 2)
		r.WantBalances(1, 4)
		if r.adds != 1 {
			t.Errorf("%d units were logged, want that of the write after", r.adds)
		}
		r.WantNoLog()
	})
}

func TestPinnedRefuseRefusesWritesAfterTextControl(t *testing.T) {
	eachControl(t, func(t *testing.T, r *controlled, control string) {
		conn := r.Conn()
		_, _ = conn.ExecContext(t.Context(), control)
		if err := r.Fails(conn, rig.SetBalance, 1, 1); !errors.Is(err, bedsql.ErrPinned) {
			t.Errorf("a write: %v, want ErrPinned", err)
		}
		_, _ = conn.ExecContext(t.Context(), "COMMIT")
		_ = conn.Close()
		r.WantBalances(100)
		if n := r.Counters.PassedThrough.Load(); n != 0 || r.adds != 0 {
			t.Errorf("%d writes ran unlogged, %d were logged", n, r.adds)
		}
	}, func(c *bedsql.Config) { c.Pinned = bedsql.PinnedRefuse })
}

func TestRollbackByTextUndoesWhatWasNotLogged(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newControlled(t, db)
		r.Account(100)
		ctx, soft, err := bedsql.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conn := r.Conn()
		r.Must(conn, "BEGIN")
		if _, err := conn.ExecContext(ctx, r.Q(rig.SetBalance), 1, 1); err != nil {
			t.Fatal(err)
		}
		r.Must(conn, "ROLLBACK")
		if err := soft.End(t.Context()); err != nil {
			t.Errorf("End: %v", err)
		}
		r.WantBalances(100)
		r.wantUnlogged(1)
		if r.adds != 0 {
			t.Errorf("%d units were logged", r.adds)
		}
	})
}

func TestTextControlInsideBeginTxIsUnlogged(t *testing.T) {
	eachControl(t, func(t *testing.T, r *controlled, control string) {
		if strings.HasPrefix(control, "SAVEPOINT") || strings.HasPrefix(control, "PREPARE") {
			return // the one is followed, the other needs a server that is set up for it
		}
		tx := r.Begin()
		r.Must(tx, rig.SetBalance, 1, 1)
		_, _ = tx.ExecContext(t.Context(), control)
		r.Must(tx, rig.SetBalance, 2, 2)
		undone := strings.HasPrefix(control, "ROLLBACK") || control == "ABORT"
		want := uint64(2) // the control itself, which takes the write before it out of the log, and the write after it
		if undone {
			want = 1
		}
		r.wantUnlogged(want)
		_ = tx.Commit()
		r.WantBalances(map[bool]int{false: 1, true: 100}[undone], 2)
		if r.adds != 0 {
			t.Errorf("%d units were logged", r.adds)
		}
		r.Must(r.Wrapped, rig.SetBalance, 3, 1)
		r.WantBalances(3, 2)
		r.WantNoLog()
	})
}

func TestPinnedRefuseKeepsTransactionsOfBeginTxLogged(t *testing.T) {
	eachControl(t, func(t *testing.T, r *controlled, control string) {
		if strings.HasPrefix(control, "SAVEPOINT") || strings.HasPrefix(control, "ROLLBACK") || control == "ABORT" {
			return // what they leave is not unlogged
		}
		tx := r.Begin()
		r.Must(tx, rig.SetBalance, 1, 1)
		if err := r.Fails(tx, control); !errors.Is(err, bedsql.ErrPinned) {
			t.Errorf("%s: %v, want ErrPinned", control, err)
		}
		r.Must(tx, rig.SetBalance, 2, 2)
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		r.WantBalances(1, 2)
		if r.adds != 1 {
			t.Errorf("%d units were logged, want the transaction", r.adds)
		}
		r.WantNoLog()
	}, func(c *bedsql.Config) { c.Pinned = bedsql.PinnedRefuse })
}

// MySQL would commit the first one.
func TestSecondBeginTxOnAConnectionIsRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		var logged []*entry.Unit
		r := rig.New(t, db, func(c *bedsql.Config) {
			c.Storage = &rig.HookedStorage{Storage: c.Storage, OnAdd: func(units []*entry.Unit) error {
				logged = append(logged, units...)
				return nil
			}}
		})
		r.Account(100, 100)
		conn := r.Conn()
		tx, err := conn.BeginTx(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Must(tx, rig.SetBalance, 1, 1)
		if _, err := conn.BeginTx(context.Background(), nil); err == nil || !strings.Contains(err.Error(), "is open on this connection") {
			t.Errorf("a second one: %v", err)
		}
		r.Must(tx, rig.SetBalance, 2, 2)
		r.WantBalances(100, 100)
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		r.WantBalances(1, 2)
		if len(logged) != 1 || len(logged[0].Statements) != 2 {
			t.Errorf("logged: %+v, want one unit of two statements", logged)
		}
	})
}
