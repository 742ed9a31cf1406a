package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// wantRefusedElsewhere has writes refused before they are sent because their
// receipts would be elsewhere than those that are there.
func (r *rig) wantRefusedElsewhere(pool *sql.DB) {
	r.t.Helper()
	before := r.balance(1)
	ctx, _ := keyed("k")
	for what, write := range map[string]func() error{
		"the request sent again": func() error {
			_, err := pool.ExecContext(ctx, r.q(increment), 1, 1)
			return err
		},
		"the request sent again as a transaction": func() error {
			tx, err := pool.BeginTx(ctx, nil)
			if err == nil {
				_, err = tx.Exec(r.q(increment), 1, 1)
				_ = tx.Rollback()
			}
			return err
		},
		"a write": func() error {
			_, err := pool.Exec(addOne)
			return err
		},
		"a staged write": func() error {
			ctx, soft, err := bedsql.Begin(context.Background(), bedsql.Staged())
			if err != nil {
				r.t.Fatal(err)
			}
			defer soft.Discard()
			_, err = pool.ExecContext(ctx, addOne)
			return err
		},
	} {
		if err := write(); err == nil || errors.Is(err, bedsql.ErrPending) || !strings.Contains(err.Error(), "Changing the schema") {
			r.t.Errorf("%s: %v, want a refusal that says what to do", what, err)
		}
	}
	r.wantBalances(before)
	r.wantNoLog()
}

// A write applied under one setting would be missed under another. So no write is applied under the
// new one, regardless of earlier users of the data source.
func TestChangedReceiptSchemaIsRefusedUntilMigration(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, from, to string
		// older: the first was written by a version that told the log nothing.
		older bool
	}{
		{name: "none to one", to: "one"},
		{name: "none of an older version to one", to: "one", older: true},
		{name: "one to none", from: "one"},
		{name: "one to another", from: "one", to: "another"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			eachServer(t, func(t *testing.T, db testdb.DB) {
				r := newRig(t, db, exactlyOnce)
				names := map[string]string{"one": schemaFor(t, db), "another": schemaFor(t, db) + "2"}
				at := func(which string) testdb.DB {
					if which == "" {
						return db
					}
					return inSchema(db, names[which])
				}
				r.account(100)
				r.db = at(c.from)
				r.wrapped = r.open(r.db.DSN)
				r.mustSendUnder("k", increment, 1, 1)
				r.wantBalances(101)
				r.wantNoLog()
				if c.older {
					r.forgetsSchema()
				}
				r.wantRefusedElsewhere(r.open(at(c.to).DSN))
				// Applications with the old setting are not disturbed.
				for range 2 {
					_, replayed := r.mustSendUnder("k", increment, 1, 1)
					wantReplayed(t, replayed, true)
					r.wrapped = r.open(r.db.DSN)
				}
				r.wantBalances(101)
			})
		})
	}
}

func (r *rig) inLog(statement string) {
	r.t.Helper()
	if _, err := r.logPool().Exec(statement); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) forgetsSchema() {
	r.t.Helper()
	r.inLog("DELETE FROM bed_log WHERE name = '" + tables.ReceiptSchema(targetOf(r.t, r.db).DataSource) + "'")
}

// moves moves the receipts as the documentation says.
func (r *rig) moves(schema string) {
	r.t.Helper()
	name := "'" + targetOf(r.t, r.db).DataSource + "'"
	r.inLog(map[string]string{
		testdb.DriverMySQL:    "INSERT INTO bed_log VALUES (CONCAT('receipts-', LEFT(SHA2(" + name + ", 256), 31)), '" + schema + "') ON DUPLICATE KEY UPDATE value = '" + schema + "'",
		testdb.DriverPostgres: "INSERT INTO bed_log VALUES ('receipts-' || left(encode(sha256(" + name + "), 'hex'), 31), '" + schema + "') ON CONFLICT (name) DO UPDATE SET value = '" + schema + "'",
	}[r.logDB.Driver])
	r.exec("CREATE SCHEMA "+schema, map[string]string{
		testdb.DriverMySQL:    "RENAME TABLE bed_receipt TO " + schema + ".bed_receipt",
		testdb.DriverPostgres: "ALTER TABLE bed_receipt SET SCHEMA " + schema,
	}[r.db.Driver])
}

func TestReceiptsMovedIntoASchemaAreMet(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, exactlyOnce, noSyncRetry)
		plain, old := r.db, r.wrapped
		r.account(100)
		r.mustSendUnder("k", increment, 1, 1)
		r.wantNoLog()
		// An entry that was left behind although the log should have been empty.
		p.CutAfter(testproxy.Text("COMMIT"))
		_, err := r.openStepwise().Exec(addOne)
		wantPending(t, err)
		r.wantBalances(102)
		schema := schemaFor(t, db)
		r.moves(schema)
		r.db = inSchema(plain, schema)
		r.wrapped = r.open(r.db.DSN)
		_, replayed := r.mustSendUnder("k", increment, 1, 1)
		wantReplayed(t, replayed, true)
		eventually(t, "the entry of the request that was sent again is removed", func() bool { return len(r.logs()) == 1 })
		for _, job := range []testdb.DB{plain, r.db} {
			if report := r.deliverTo(t, r.wantOneLog().DataSource, job.DSN); report.PushedBack != 1 {
				t.Errorf("the job: %s", report)
			}
			if u := r.wantOneLog(); u.Tries != 0 || u.Parked || !strings.Contains(u.LastError, "Changing the schema") {
				t.Errorf("the entry that was left behind: %+v", u)
			}
		}
		r.wantBalances(102)
		// An instance that runs on makes no second table.
		if _, err := old.Exec(addOne); err == nil {
			t.Error("an instance with the old setting writes")
		}
		if got := r.tables(); !slices.Equal(got, []string{"account"}) {
			t.Errorf("a migrator sees %q", got)
		}
		r.wantBalances(102)
	})
}

// silentStorage is a log that neither answers for the place of receipts nor takes entries.
type silentStorage struct {
	txlog.Storage
	silent atomic.Bool
}

func (s *silentStorage) answer() error {
	if s.silent.Load() {
		return errLogDown
	}
	return nil
}

func (s *silentStorage) ReceiptSchema(ctx context.Context, dataSource string) (string, bool, error) {
	if err := s.answer(); err != nil {
		return "", false, err
	}
	return s.Storage.ReceiptSchema(ctx, dataSource)
}

func (s *silentStorage) Add(ctx context.Context, lease time.Duration, units ...*txlog.Unit) error {
	if err := s.answer(); err != nil {
		return err
	}
	return s.Storage.Add(ctx, lease, units...)
}

// An application that logs on failure may start while its log is down. New requests write at once;
// a possible repetition must first learn the place of the earlier receipt.
func TestSilentLogDelaysOnlyKeyedWrites(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		log := &silentStorage{}
		r := newRig(t, db, exactlyOnce, noSyncRetry, func(c *bedsql.Config) {
			log.Storage, c.Storage, c.Logging = c.Storage, log, bedsql.LogOnFailure
		})
		r.account(100)
		r.mustSendUnder("k", increment, 1, 1)
		log.silent.Store(true)
		pool := r.open(r.db.DSN)
		if _, err := pool.Exec(addOne); err != nil {
			t.Errorf("a write: %v", err)
		}
		tx, err := pool.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(addOne); err != nil {
			t.Errorf("a write in a transaction: %v", err)
		}
		if err := tx.Commit(); err != nil {
			t.Errorf("a transaction: %v", err)
		}
		r.wantBalances(103)
		ctx, _ := keyed("k")
		if _, err := pool.ExecContext(ctx, r.q(increment), 1, 1); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("a request sent again: %v, want ErrNotLogged", err)
		}
		if tx, err := pool.BeginTx(ctx, nil); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("a request sent again as a transaction: %v, want ErrNotLogged", err)
			if err == nil {
				_ = tx.Rollback()
			}
		}
		if _, err := r.open(inSchema(db, schemaFor(t, db)).DSN).Exec(addOne); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("a write with a schema: %v, want ErrNotLogged", err)
		}
		r.wantBalances(103)
		log.silent.Store(false)
		r.wrapped = pool
		_, replayed := r.mustSendUnder("k", increment, 1, 1)
		wantReplayed(t, replayed, true)
		r.wantBalances(103)
		r.wantNoLog()
	})
}

// The first write under ExactlyOnce of an opened database asks the log for the place of receipts. A
// silent log must not hold up a caller without a deadline.
func TestUnknownReceiptPlaceDelaysNoWrite(t *testing.T) {
	t.Parallel()
	for name, logging := range map[string]bedsql.Logging{"before": bedsql.LogBefore, "on failure": bedsql.LogOnFailure} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := newRigLogBehindProxy(t, db, exactlyOnce, func(c *bedsql.Config) {
					c.Logging, c.LogTimeout = logging, 2*time.Second
				})
				r.account(100)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				question := testproxy.Text(tables.ReceiptSchema(dataSourceOf(t, db)))
				struck := p.Mute(question)
				if _, err := r.wrapped.ExecContext(ctx, addOne); err != nil {
					t.Errorf("a write: %v", err)
				}
				waitFor(t, "the log is asked", struck)
				r.wantBalances(101)
				struck = p.Mute(question)
				underKey, _ := keyed("k")
				underKey, cancelKeyed := context.WithTimeout(underKey, 20*time.Second)
				defer cancelKeyed()
				if _, err := r.wrapped.ExecContext(underKey, addOne); !errors.Is(err, bedsql.ErrNotLogged) || underKey.Err() != nil {
					t.Errorf("a request under a key: %v, want ErrNotLogged", err)
				}
				waitFor(t, "the log is asked for a request under a key", struck)
				if _, err := r.wrapped.ExecContext(underKey, addOne); err != nil {
					t.Errorf("a request under a key, when the log answers: %v", err)
				}
				r.wantBalances(102)
			})
		})
	}
}
