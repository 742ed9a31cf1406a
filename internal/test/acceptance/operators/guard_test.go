package operators

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// listening returns a configuration with a logger that counts warnings.
func listening() (func(*bedsql.Config), func() int) {
	logger, hook := logtest.NewNullLogger()
	return func(cfg *bedsql.Config) { cfg.Logger = logger }, func() int {
		n := 0
		for _, e := range hook.AllEntries() {
			if e.Level <= logrus.WarnLevel {
				n++
			}
		}
		return n
	}
}

func TestGuardWarnsOnceOfIncrementsAndRunsThem(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		listen, warnings := listening()
		r := rig.New(t, db, listen)
		r.Account(100)
		for range 3 {
			if _, err := r.Wrapped.Exec(r.Q(rig.Increment), 1, 1); err != nil {
				t.Fatal(err)
			}
		}
		// The old value in the WHERE prevents a second application.
		if _, err := r.Wrapped.Exec(r.Q("UPDATE account SET balance = balance + 1 WHERE id = ? AND balance = ?"), 1, 103); err != nil {
			t.Fatal(err)
		}
		if b := r.Balance(1); b != 104 {
			t.Errorf("balance = %d, want 104", b)
		}
		if w, n := warnings(), r.Counters.Guarded.Load(); w != 1 || n != 3 {
			t.Errorf("%d warnings, Guarded = %d, want 1 and 3", w, n)
		}
		r.WantNoLog()
	})
}

func TestGuardRefusesWhatWouldHappenTwice(t *testing.T) {
	t.Parallel()
	upsert := testdb.By[string]{
		MySQL:    "INSERT INTO account VALUES (1, 5) ON DUPLICATE KEY UPDATE balance = balance + VALUES(balance)",
		Postgres: "INSERT INTO account VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET balance = account.balance + excluded.balance",
		SQLite:   "INSERT INTO account VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET balance = balance + excluded.balance",
	}
	absolute := testdb.By[string]{
		MySQL:    "INSERT INTO account VALUES (1, 5) ON DUPLICATE KEY UPDATE balance = VALUES(balance)",
		Postgres: "INSERT INTO account VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET balance = excluded.balance",
		SQLite:   "INSERT INTO account VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET balance = excluded.balance",
	}
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, func(cfg *bedsql.Config) { cfg.Guard = bedsql.GuardRefuse })
		r.Account(100)
		ctx := context.Background()
		if _, err := r.Wrapped.Exec(r.Q(rig.Increment), 1, 1); !errors.Is(err, bedsql.ErrNotIdempotent) {
			t.Errorf("an increment: %v, want ErrNotIdempotent", err)
		}
		if _, err := r.Wrapped.Exec(upsert.For(db.Driver)); !errors.Is(err, bedsql.ErrNotIdempotent) {
			t.Errorf("an upsert that adds: %v, want ErrNotIdempotent", err)
		}
		softly, soft, err := bedsql.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Wrapped.ExecContext(softly, r.Q(rig.Increment), 1, 1); !errors.Is(err, bedsql.ErrNotIdempotent) {
			t.Errorf("in a soft transaction: %v, want ErrNotIdempotent", err)
		}
		if err := soft.End(ctx); err != nil {
			t.Error(err)
		}
		tx, err := r.Wrapped.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(r.Q(rig.Increment), 1, 1); !errors.Is(err, bedsql.ErrNotIdempotent) {
			t.Errorf("in a local transaction: %v, want ErrNotIdempotent", err)
		}
		if _, err := tx.Exec(r.Q("INSERT INTO account (id, balance) VALUES (?, ?)"), 2, 7); err != nil {
			t.Errorf("the transaction does not go on: %v", err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if one, two := r.Balance(1), r.Balance(2); one != 100 || two != 7 {
			t.Errorf("the balances are %d and %d, want 100 and 7", one, two)
		}
		if _, err := r.Wrapped.Exec(absolute.For(db.Driver)); err != nil {
			t.Errorf("an upsert that sets: %v", err)
		}
		if _, err := r.Wrapped.ExecContext(bedsql.Unlogged(ctx), r.Q(rig.Increment), 1, 1); err != nil {
			t.Errorf("under Unlogged: %v", err)
		}
		if b := r.Balance(1); b != 6 {
			t.Errorf("balance = %d, want 6", b)
		}
		r.WantNoLog()
	})
}

func TestGuardLeavesExactlyOnceAlone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		listen, warnings := listening()
		r := rig.New(t, db, listen, func(cfg *bedsql.Config) { cfg.Guard = bedsql.GuardRefuse })
		r.Account(100)
		r.Exec("CREATE TABLE note (id INT PRIMARY KEY, at VARCHAR(40))")
		once := bedsql.WithGuarantee(context.Background(), bedsql.ExactlyOnce)
		if _, err := r.Wrapped.ExecContext(once, r.Q(rig.Increment), 1, 1); err != nil {
			t.Fatal(err)
		}
		keyed, _ := bedsql.WithIdempotencyKey(context.Background(), "key")
		if _, err := r.Wrapped.ExecContext(keyed, r.Q(rig.Increment), 1, 1); err != nil {
			t.Fatal(err)
		}
		if w := warnings(); w != 0 {
			t.Errorf("%d warnings of what is applied once, want none", w)
		}
		for i := range 2 {
			if _, err := r.Wrapped.ExecContext(once, r.Q("INSERT INTO note (id, at) VALUES (?, CURRENT_TIMESTAMP)"), i); err != nil {
				t.Fatal(err)
			}
		}
		if w := warnings(); w != 1 {
			t.Errorf("%d warnings of a time that may be late, want 1", w)
		}
		if b := r.Balance(1); b != 102 {
			t.Errorf("balance = %d, want 102", b)
		}
	})
}

func TestGuardRefusesAtLeastOnceBesideExactlyOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, func(cfg *bedsql.Config) { cfg.Guard, cfg.Guarantee = bedsql.GuardRefuse, bedsql.ExactlyOnce })
		r.Account(100)
		ctx := context.Background()
		if _, err := r.Wrapped.ExecContext(ctx, r.Q(rig.Increment), 1, 1); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Wrapped.ExecContext(bedsql.WithGuarantee(ctx, bedsql.AtLeastOnce), r.Q(rig.Increment), 1, 1); !errors.Is(err, bedsql.ErrNotIdempotent) {
			t.Errorf("an increment that may be applied twice: %v", err)
		}
		if b := r.Balance(1); b != 101 {
			t.Errorf("balance = %d, want 101", b)
		}
	})
}

// As the session reads its quotes, "balance" is a column or a string.
func TestGuardReadsQuotesBySessionBesideExactlyOnce(t *testing.T) {
	t.Parallel()
	for mode, refused := range map[string]bool{"ANSI_QUOTES": true, "": false} {
		t.Run("sql_mode="+mode, func(t *testing.T) {
			t.Parallel()
			db := rig.WithParam(testdb.MySQL(t), "sql_mode", "'"+mode+"'")
			r := rig.New(t, db, func(cfg *bedsql.Config) { cfg.Guard, cfg.Guarantee = bedsql.GuardRefuse, bedsql.ExactlyOnce })
			r.Account(100)
			ctx := bedsql.WithGuarantee(context.Background(), bedsql.AtLeastOnce)
			if _, err := r.Wrapped.ExecContext(ctx, `UPDATE account SET balance = "balance" + 1 WHERE id = 1`); errors.Is(err, bedsql.ErrNotIdempotent) != refused {
				t.Errorf("told %v, want it refused: %v", err, refused)
			}
		})
	}
}

func TestGuardWarnsOfAGeneratedID(t *testing.T) {
	t.Parallel()
	tables := testdb.By[string]{
		MySQL:    "CREATE TABLE person (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(20))",
		Postgres: "CREATE TABLE person (id SERIAL PRIMARY KEY, name TEXT)",
		SQLite:   "CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT)",
	}
	// MySQL tells by its answer; on the others the text decides.
	made := testdb.By[string]{
		MySQL:    "INSERT INTO person (name) VALUES (?)",
		Postgres: "INSERT INTO person (name) VALUES ($1) RETURNING id",
		SQLite:   "INSERT INTO person (id, name) VALUES (NULL, ?)",
	}
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		listen, warnings := listening()
		r := rig.New(t, db, listen)
		r.Exec(tables.For(db.Driver))
		for i := range 3 {
			if _, err := r.Wrapped.Exec(r.Q("INSERT INTO person (id, name) VALUES (?, ?)"), 100+i, "a"); err != nil {
				t.Fatal(err)
			}
			// The same without the names: the given id is among the parameters.
			if _, err := r.Wrapped.Exec(r.Q("INSERT INTO person VALUES (?, ?)"), 200+i, "a"); err != nil {
				t.Fatal(err)
			}
		}
		if w := warnings(); w != 0 {
			t.Errorf("%d warnings of rows with a given id, want none", w)
		}
		for range 3 {
			if _, err := r.Wrapped.Exec(made.For(db.Driver), "a"); err != nil {
				t.Fatal(err)
			}
		}
		if w, n := warnings(), r.Counters.Guarded.Load(); w != 1 || n != 3 {
			t.Errorf("%d warnings, Guarded = %d, want 1 and 3", w, n)
		}
	})
}

func TestGuardReadsPgxNamedParameters(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.Postgres(t), func(cfg *bedsql.Config) { cfg.Guard = bedsql.GuardRefuse })
	r.Account(100)
	args := pgx.NamedArgs{"balance": 7, "id": 1}
	if _, err := r.Wrapped.Exec("UPDATE account SET balance = @balance WHERE id = @id", args); err != nil {
		t.Errorf("an absolute value: %v", err)
	}
	tx, err := r.Wrapped.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("UPDATE account SET balance = @balance WHERE id = @id", pgx.StrictNamedArgs(args)); err != nil {
		t.Errorf("in a local transaction: %v", err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wrapped.Exec("UPDATE account SET balance = balance + @balance WHERE id = @id", args); !errors.Is(err, bedsql.ErrNotIdempotent) {
		t.Errorf("an increment: %v, want ErrNotIdempotent", err)
	}
	if b := r.Balance(1); b != 7 {
		t.Errorf("balance = %d, want 7", b)
	}
	r.WantNoLog()
}

func TestGuardWarnsOnceOfInsertsDifferingInRows(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		listen, warnings := listening()
		r := rig.New(t, db, listen)
		r.Exec("CREATE TABLE seen (id INT PRIMARY KEY, note VARCHAR(40))")
		for rows := 1; rows <= 4; rows++ {
			var args []any
			var values []string
			for i := range rows {
				args = append(args, rows*10+i)
				values = append(values, "(?, CURRENT_TIMESTAMP)")
			}
			if _, err := r.Wrapped.Exec(r.Q("INSERT INTO seen (id, note) VALUES "+strings.Join(values, ", ")), args...); err != nil {
				t.Fatal(err)
			}
		}
		if w, n := warnings(), r.Counters.Guarded.Load(); w != 1 || n != 4 {
			t.Errorf("%d warnings, Guarded = %d, want 1 and 4", w, n)
		}
		r.WantNoLog()
	})
}
