package withtx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// wantNothing wants a Commit that failed before its COMMIT to have left nothing.
func wantNothing(b *rig.Begun) {
	b.T.Helper()
	if err := b.End(); !errors.Is(err, bedsql.ErrRolledBack) || bedsql.OutcomeOf(err) != bedsql.OutcomeNotAccepted {
		b.T.Errorf("End says %v (%v)", err, bedsql.OutcomeOf(err))
	}
	if n := b.AtHome(); n != 100 {
		b.T.Errorf("account 1 holds %d", n)
	}
	if n := b.Left(); n != 0 {
		b.T.Errorf("the log holds %d entries", n)
	}
	b.WantBalances(100, 100)
}

// hooked makes the log do something before each of its INSERTs: refuse the row, or leave it out if
// it is the second of its unit.
func hooked(w *rig.WithRig, refuses bool) {
	w.T.Helper()
	does := map[string]string{
		testdb.DriverMySQL:  "CREATE TRIGGER hook BEFORE INSERT ON transaction_log FOR EACH ROW SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 1062, MESSAGE_TEXT = 'hooked'",
		testdb.DriverSQLite: "CREATE TRIGGER hook BEFORE INSERT ON transaction_log WHEN NEW.statement_no = 1 BEGIN SELECT RAISE(IGNORE); END",
	}
	if refuses {
		does[testdb.DriverSQLite] = "CREATE TRIGGER hook BEFORE INSERT ON transaction_log BEGIN SELECT RAISE(ABORT, 'hooked'); END"
	}
	if w.HomeDB.Driver != testdb.DriverPostgres {
		w.ExecLog(does[w.HomeDB.Driver])
		return
	}
	body := "IF NEW.statement_no = 1 THEN RETURN NULL; END IF; RETURN NEW;"
	if refuses {
		body = "RAISE EXCEPTION 'hooked' USING ERRCODE = 'unique_violation';"
	}
	w.ExecLog("CREATE FUNCTION hook() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN " + body + " END $$")
	w.ExecLog("CREATE TRIGGER hook BEFORE INSERT ON transaction_log FOR EACH ROW EXECUTE FUNCTION hook()")
}

// Rows and entries commit together: never with no entry, or with a part of them.
func TestCommitOfWithIsNotReachedWithoutAllItsEntries(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, missing := range map[string]func(w *rig.WithRig){
			"all": func(w *rig.WithRig) { w.ExecLog("UPDATE bed_log SET value = 'another' WHERE name = 'identity'") },
			"one": func(w *rig.WithRig) { hooked(w, false) },
		} {
			if name == "one" && db.Driver == testdb.DriverMySQL {
				continue // no trigger of it leaves a row out: see TestCommitWithCountsRows
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := rig.NewWith(t, testdb.NewLog(t, db.Driver))
				b := w.Begun()
				b.Records(1)
				b.Records(1)
				missing(w)
				takes(b)
				err := b.Tx.Commit()
				var elsewhere *bedsql.LogElsewhereError
				if name == "all" != errors.As(err, &elsewhere) || name == "one" != errors.Is(err, bedsql.ErrNotLogged) {
					t.Errorf("Commit says %v", err)
				}
				wantNothing(b)
			})
		}
	})
}

// To the application, a duplicate among the log's rows is no refusal of its own.
func TestRefusedEntriesOfWithAreNotTheApplicationsError(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		b.Records(1)
		hooked(w, true)
		takes(b)
		err := b.Tx.Commit()
		if !errors.Is(err, bedsql.ErrNotLogged) || bedsql.OutcomeOf(err) != bedsql.OutcomeNotAccepted || !strings.Contains(err.Error(), "hooked") {
			t.Errorf("Commit says %v (%v)", err, bedsql.OutcomeOf(err))
		}
		wantNothing(b)
	})
}

func TestMissingLogAtTheCommitOfWithRollsBack(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		b.Records(1)
		w.ExecLog("ALTER TABLE transaction_log RENAME TO gone")
		takes(b)
		var elsewhere *bedsql.LogElsewhereError
		if err := b.Tx.Commit(); !errors.As(err, &elsewhere) || elsewhere.Cause == nil {
			t.Errorf("Commit says %v", err)
		}
		w.ExecLog("ALTER TABLE gone RENAME TO transaction_log")
		wantNothing(b)
	})
}

// Beyond the size of one message the INSERT comes first, alone. Its lost answer is no doubt.
func TestLostAnswerToTheEntriesOfWithAloneRollsBack(t *testing.T) {
	t.Parallel()
	eachWithServer(t, func(t *testing.T, w *rig.WithRig) {
		w.Exec("CREATE TABLE long_words (id INT PRIMARY KEY, word " + map[string]string{testdb.DriverMySQL: "LONGTEXT", testdb.DriverPostgres: "TEXT"}[w.HomeDB.Driver] + ")")
		size := map[string]int{testdb.DriverMySQL: 300 << 10, testdb.DriverPostgres: 5 << 20}[w.HomeDB.Driver]
		p := behindProxy(w)
		long := func(b *rig.Begun, id int) {
			b.Stage(b.Ctx, b.Rig.Wrapped, "INSERT INTO long_words VALUES (?, ?) /* "+strings.Repeat("x", size)+" */", id, "a")
		}
		b := w.Begun()
		takes(b)
		long(b, 1)
		p.CutAfter(func(message []byte) bool {
			return testproxy.Text("transaction_log")(message) && !testproxy.Commit(message) && !testproxy.Text("WHERE 1 = 0")(message)
		})
		if err := b.Tx.Commit(); err == nil || bedsql.OutcomeOf(err) == bedsql.OutcomeUnknown {
			if w.HomeDB.Driver == testdb.DriverMySQL {
				t.Errorf("Commit says %v (%v)", err, bedsql.OutcomeOf(err))
			}
		} else {
			wantNothing(b)
		}
		p.Forget()
		b = w.Begun()
		takes(b)
		long(b, 2)
		b.Commit()
		if err := b.End(); err != nil {
			t.Errorf("End says %v", err)
		}
	})
}

// What could end the transaction unseen is refused once there is a record, and seen before.
func TestNothingEndsATransactionOfWithUnseen(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		refused := map[string][]string{
			testdb.DriverMySQL: {"CALL ends()", "EXECUTE IMMEDIATE 'COMMIT'", "CREATE TABLE other (id INT)", "COMMIT", "COMMIT AND CHAIN", "BEGIN", "SET autocommit = 1", "LOCK TABLES account WRITE",
				"XA END 'x'", "ROLLBACK TO SAVEPOINT unseen", "BEGIN NOT ATOMIC COMMIT; END"},
			testdb.DriverPostgres: {"COMMIT", "COMMIT AND CHAIN", "PREPARE TRANSACTION 'x'", "BEGIN", "ROLLBACK TO SAVEPOINT unseen"},
			testdb.DriverSQLite:   {"COMMIT", "END", "BEGIN", "SELECT 1; COMMIT", "ROLLBACK TO unseen"},
		}[db.Driver]
		w := rig.NewWith(t, testdb.NewLog(t, db.Driver))
		b := w.Begun()
		takes(b)
		b.Records(1)
		for _, text := range refused {
			if _, err := b.Tx.Exec(text); !errors.Is(err, bedsql.ErrStaged) || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
				t.Errorf("%s says %v", text, err)
			}
		}
		if db.Driver == testdb.DriverPostgres { // there they cannot end it
			b.Must(b.Tx, "DO $$ BEGIN PERFORM 1; END $$")
			b.Must(b.Tx, "CREATE TABLE other (id INT)")
		}
		b.Commit()
		if err := b.End(); err != nil {
			t.Errorf("End says %v", err)
		}
		w.WantBalances(101, 100)
		w.WantEmpty()
		if db.Driver != testdb.DriverMySQL || testdb.MySQLPath() {
			return
		}
		w.Must(w.Bare, "CREATE PROCEDURE ends() COMMIT")
		for name, calls := range map[string]func() (*rig.Begun, error){
			"before Begin": func() (*rig.Begun, error) {
				tx, err := w.Home.Begin()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = tx.Rollback() })
				w.Must(tx, "CALL ends()")
				_, _, err = bedsql.Begin(context.Background(), bedsql.WithTx(tx))
				return nil, err
			},
			"before a record": func() (*rig.Begun, error) {
				b := w.Begun()
				b.Must(b.Tx, "CALL ends()")
				b.Records(1)
				return b, b.Tx.Commit()
			},
		} {
			b, err := calls()
			if err == nil || !strings.Contains(err.Error(), "rolled") && !errors.Is(err, bedsql.ErrTransactionLost) {
				t.Errorf("%s: it says %v", name, err)
			}
			if b != nil {
				_ = b.End()
			}
		}
		if n := w.Left(); n != 0 {
			t.Errorf("the log holds %d entries", n)
		}
	})
}

// Savepoints of one name are replaced by MySQL, and stacked by the others.
func TestSavepointsOfWithAreThoseOfTheServer(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		w := rig.NewWith(t, testdb.NewLog(t, db.Driver))
		b := w.Begun()
		b.Must(b.Tx, "SAVEPOINT Again")
		b.Records(1)
		b.Must(b.Tx, "SAVEPOINT again")
		b.Records(2)
		b.Must(b.Tx, "ROLLBACK TO SAVEPOINT aGAIN")
		b.Records(1)
		if db.Driver != testdb.DriverMySQL {
			b.Must(b.Tx, "RELEASE SAVEPOINT again")
			b.Must(b.Tx, "ROLLBACK TO SAVEPOINT again")
			b.Records(1)
			b.Records(1)
		}
		if db.Driver == testdb.DriverPostgres {
			b.Must(b.Tx, `SAVEPOINT "Quoted"`)
			b.Records(2)
			if _, err := b.Tx.Exec("ROLLBACK TO SAVEPOINT Quoted"); !errors.Is(err, bedsql.ErrStaged) {
				t.Errorf("another name says %v", err)
			}
			b.Must(b.Tx, `ROLLBACK TO SAVEPOINT "Quoted"`)
		}
		b.Commit()
		if err := b.End(); err != nil {
			t.Errorf("End says %v", err)
		}
		w.WantBalances(102, 100)
		w.WantEmpty()
	})
}

// Begin costs no round trip, and neither does a record; the entries travel with COMMIT.
func TestRecordsOfWithCostNoRoundTrip(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		if db.Driver == testdb.DriverMySQL && testdb.MySQLPath() {
			return // MySQL takes two
		}
		w := rig.NewWith(t, testdb.NewLog(t, db.Driver), rig.ExactlyOnce)
		p := behindProxy(w)
		group := func() {
			b := w.Begun()
			takes(b)
			b.Records(1)
			b.Records(2)
			b.Commit()
			if err := b.End(); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 { // what connections prepare and learn
			group()
		}
		p.Forget()
		sent := p.Count(func(message []byte) bool { return true })
		commits := p.Count(testproxy.Commit)
		tx, err := w.Home.Begin()
		if err != nil {
			t.Fatal(err)
		}
		before := sent()
		b := w.With(tx, tx)
		b.Records(1)
		b.Records(2)
		if n := sent() - before; n != 0 {
			t.Errorf("Begin and two records sent %d messages", n)
		}
		b.Commit()
		if n := commits(); n != 1 {
			t.Errorf("COMMIT was sent %d times", n)
		}
		if n := sent() - before; db.Driver == testdb.DriverMySQL && n != 1 {
			t.Errorf("COMMIT and the entries took %d messages", n)
		}
		if err := b.End(); err != nil {
			t.Error(err)
		}
	})
}

func TestRecordThatWithCanNeverWriteIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		tx, err := w.Home.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		b := w.With(tx, tx)
		if _, err := w.Rig.Wrapped.ExecContext(b.Ctx, w.Q(rig.Increment), 1, 1); !errors.Is(err, bedsql.ErrStaged) {
			t.Errorf("in a read-only transaction, a write says %v", err)
		}
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		if w.HomeDB.Driver != testdb.DriverMySQL {
			return
		}
		b = w.Begun()
		takes(b)
		_, err = w.Rig.Wrapped.ExecContext(b.Ctx, "INSERT INTO account VALUES (?, ?) /* "+strings.Repeat("x", 5<<20)+" */", 9, 9)
		if err == nil || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused || !strings.Contains(err.Error(), "max_allowed_packet") {
			t.Errorf("a record of 5 MiB says %.300v", err)
		}
		b.Records(1)
		b.Commit()
		if err := b.End(); err != nil {
			t.Errorf("End says %v", err)
		}
		w.WantBalances(101, 100)
	})
}

func TestCommitOfWithEndsTheRecording(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		b.Records(1)
		b.Commit()
		if _, err := w.Rig.Wrapped.ExecContext(b.Ctx, w.Q(rig.Increment), 1, 2); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("a write after Commit says %v", err)
		}
		if err := b.End(); err != nil {
			t.Errorf("End says %v", err)
		}
		w.WantBalances(101, 100)
	})
}

// A COMMIT that waits for the row of an order key gives up, and nothing is in doubt.
func TestCommitOfWithWaitsBrieflyForAnOrderKey(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		w := rig.NewWith(t, testdb.NewLog(t, db.Driver), rig.ExactlyOnce, func(c *bedsql.Config) { c.AttemptTimeout = rig.Patience })
		record := func() *rig.Begun {
			b := w.Begun()
			takes(b)
			b.Stage(bedsql.WithOrderKey(b.Ctx, "k"), b.Rig.Wrapped, rig.SetBalance, 1, 1)
			return b
		}
		b := record()
		b.Commit()
		if err := b.End(); err != nil {
			t.Fatal(err)
		}
		b = record()
		holds, err := w.LogDB.Open(t).Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = holds.Rollback() }()
		w.Must(holds, "UPDATE bed_order_key SET waiting = waiting")
		if db.Driver == testdb.DriverPostgres {
			w.Must(b.Tx, "SET LOCAL lock_timeout = '1h'") // which is not asked
		}
		if err := b.Tx.Commit(); !errors.Is(err, bedsql.ErrNotLogged) && !testdb.MySQLPath() || bedsql.OutcomeOf(err) == bedsql.OutcomeUnknown {
			t.Errorf("Commit says %v (%v)", err, bedsql.OutcomeOf(err))
		}
		if err := b.End(); !errors.Is(err, bedsql.ErrRolledBack) {
			t.Errorf("End says %v", err)
		}
		if n := w.AtHome(); n != 99 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

// Under a snapshot no number could be issued once anything under the key has come or gone.
func TestOrderKeyOfWithNeedsReadCommitted(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		w := rig.NewWith(t, testdb.NewLog(t, db.Driver), rig.ExactlyOnce)
		level, refused := sql.LevelRepeatableRead, db.Driver == testdb.DriverPostgres
		if db.Driver == testdb.DriverMySQL {
			var name, value string
			if err := w.Bare.QueryRow("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'").Scan(&name, &value); err == nil {
				w.Home, refused = w.Open(rig.WithParam(w.HomeDB, "innodb_snapshot_isolation", "ON").DSN), true
			}
		}
		for level, refused := range map[sql.IsolationLevel]bool{level: refused, sql.LevelReadCommitted: false} {
			tx, err := w.Home.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
			if err != nil {
				t.Fatal(err)
			}
			b := w.With(tx, tx)
			_, err = w.Rig.Wrapped.ExecContext(bedsql.WithOrderKey(b.Ctx, "k"), w.Q(rig.SetBalance), 1, 1)
			if refused != errors.Is(err, bedsql.ErrOrderUnusable) || !refused && err != nil {
				t.Errorf("at %v it says %v", level, err)
			}
			_ = tx.Rollback()
		}
	})
}

// An entry is as old as it is, whatever the session takes for the time.
func TestSetTimestampAgesNoEntryOfWith(t *testing.T) {
	t.Parallel()
	w := rig.NewWith(t, testdb.NewLog(t, testdb.DriverMySQL))
	b := w.Begun()
	w.Must(b.Tx, "SET timestamp = 86400")
	b.Records(1)
	b.Commit()
	if u := w.WantOneLog(); time.Since(u.CreatedAt).Abs() > time.Hour {
		t.Errorf("the entry is of %v", u.CreatedAt)
	}
	if err := b.End(); err != nil {
		t.Errorf("End says %v", err)
	}
}

// In the log's own SQLite file, WithTx alone writes.
func TestOtherWritesToTheLogsOwnFileAreRefused(t *testing.T) {
	t.Parallel()
	w := rig.NewWith(t, testdb.SQLite(t))
	local := func() error {
		tx, err := w.Home.Begin()
		if err != nil {
			return err
		}
		w.Must(tx, "UPDATE account SET balance = 0")
		return tx.Commit()
	}
	staged := func() error {
		ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
		if err != nil {
			return err
		}
		defer soft.Discard()
		_, err = w.Home.ExecContext(ctx, "UPDATE account SET balance = 0")
		return err
	}
	alone := func() error {
		_, err := w.Home.Exec("UPDATE account SET balance = 0")
		return err
	}
	for name, write := range map[string]func() error{"alone": alone, "in a local transaction": local, "staged": staged} {
		if err := write(); err == nil || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused || !strings.Contains(err.Error(), "the same SQLite file") {
			t.Errorf("%s, it says %v", name, err)
		}
	}
	if n := w.AtHome(); n != 100 {
		t.Errorf("account 1 holds %d", n)
	}
	if _, err := w.Home.ExecContext(bedsql.Unlogged(t.Context()), "UPDATE account SET balance = 7 WHERE id = 1"); err != nil {
		t.Errorf("unlogged, it says %v", err)
	}
	if n := w.AtHome(); n != 7 {
		t.Error(fmt.Sprint("account 1 holds ", n))
	}
}
