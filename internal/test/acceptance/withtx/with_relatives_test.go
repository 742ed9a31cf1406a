package withtx

import (
	"context"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// A request repeated under its key is applied once, by either transaction.
func TestKeyOfWithAppliesRequestOnce(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		send := func(by int) (*bedsql.IdempotencyKey, error) {
			tx, err := w.Home.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			ctx, key := bedsql.WithIdempotencyKey(context.Background(), "request")
			ctx, soft, err := bedsql.Begin(ctx, bedsql.WithTx(tx))
			if err != nil {
				t.Fatal(err)
			}
			w.Stage(ctx, w.Rig.Wrapped, rig.Increment, by, 1)
			w.Stage(ctx, w.Rig.Wrapped, rig.Increment, by, 2)
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			return key, soft.End(context.Background())
		}
		if key, err := send(1); err != nil || key.Replayed() {
			t.Errorf("the first says %v, replayed %v", err, key.Replayed())
		}
		if key, err := send(1); err != nil || !key.Replayed() {
			t.Errorf("the second says %v, replayed %v", err, key.Replayed())
		}
		if _, err := send(2); bedsql.OutcomeOf(err) != bedsql.OutcomePartlyRefused {
			t.Errorf("another request under the key says %v", err)
		}
		w.WantBalances(101, 101)
	})
}

// The transaction at home is itself under a key: a repetition does not run.
func TestKeyedTransactionAtHomeRecordsOnce(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		w := rig.NewWith(t, testdb.NewLog(t, db.Driver))
		for i := range 2 {
			ctx, key := bedsql.WithIdempotencyKey(context.Background(), "request")
			tx, err := w.Home.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = balance - 1 WHERE id = 1"); err != nil {
				t.Fatal(err)
			}
			b := w.With(tx, tx)
			b.Records(1)
			b.Commit()
			want := []bedsql.Outcome{bedsql.OutcomeDelivered, bedsql.OutcomeAccepted}[i] // what the first one recorded may still be on its way
			if err := b.End(); bedsql.OutcomeOf(err) != want {
				t.Errorf("End says %v, want %v", err, want)
			}
			if key.Replayed() != (i == 1) {
				t.Errorf("replayed: %v", key.Replayed())
			}
		}
		w.WantBalances(101, 100)
		if n := w.AtHome(); n != 99 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

func TestPostgresLogOfWithInItsOwnSchema(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	own := rig.WithParam(db, "search_path", `"the log"`)
	pool := db.Open(t)
	if _, err := pool.Exec(`CREATE SCHEMA "the log"`); err != nil {
		t.Fatal(err)
	}
	{
		r := rig.NewWithLog(t, testdb.Postgres(t), own)
		r.Account(100, 100)
		w := &rig.WithRig{Rig: r, HomeDB: db, Bare: pool}
		w.Home = w.Open(db.DSN)
		b := w.Begun()
		b.Must(b.Tx, "CREATE TABLE IF NOT EXISTS here (id INT)")
		b.Records(1)
		b.Records(1)
		b.Commit()
		if err := b.End(); err != nil {
			t.Fatal(err)
		}
		w.WantBalances(102, 100)
		w.WantEmpty()
	}
}

// No setting of the transaction's session changes its entries.
func TestSessionOfWithDoesNotChangeItsEntries(t *testing.T) {
	t.Parallel()
	for driver, settings := range map[string][]string{
		testdb.DriverMySQL: {"SET NAMES latin1", "SET sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES,PIPES_AS_CONCAT'", "SET time_zone = '+05:00'",
			"SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"},
		testdb.DriverPostgres: {"SET standard_conforming_strings = off", "SET search_path = pg_catalog", "SET default_transaction_isolation = 'serializable'"},
	} {
		for _, text := range settings {
			w := rig.NewWith(t, testdb.NewLog(t, driver))
			w.Exec("CREATE TABLE words (id INT PRIMARY KEY, word VARCHAR(100) NOT NULL)")
			conn, err := w.Home.Conn(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.ExecContext(context.Background(), text); err != nil {
				t.Fatal(err)
			}
			tx, err := conn.BeginTx(context.Background(), nil)
			if err != nil {
				t.Fatal(err)
			}
			b := w.With(tx, tx)
			const word = `Grüße 🍎 \' "x" '' \\`
			b.Stage(b.Ctx, b.Rig.Wrapped, "INSERT INTO words VALUES (?, ?)", 1, word)
			b.Stage(b.Ctx, b.Rig.Wrapped, rig.Increment, 1, 1)
			b.Commit()
			w.Delivers()
			_ = conn.Close()
			var got string
			if err := w.Rig.Bare.QueryRow("SELECT word FROM words").Scan(&got); err != nil || got != word {
				t.Errorf("%s: %q arrived as %q, %v", text, word, got, err)
			}
			w.WantBalances(101, 100)
		}
	}
}
