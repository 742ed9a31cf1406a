package exactlyonce

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
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// wantRefusedElsewhere has writes refused before they are sent because their
// receipts would be elsewhere than those that are there.
func wantRefusedElsewhere(r *rig.Rig, pool *sql.DB) {
	r.T.Helper()
	before := r.Balance(1)
	ctx, _ := rig.Keyed("k")
	for what, write := range map[string]func() error{
		"the request sent again": func() error {
			_, err := pool.ExecContext(ctx, r.Q(rig.Increment), 1, 1)
			return err
		},
		"the request sent again as a transaction": func() error {
			tx, err := pool.BeginTx(ctx, nil)
			if err == nil {
				_, err = tx.Exec(r.Q(rig.Increment), 1, 1)
				_ = tx.Rollback()
			}
			return err
		},
		"a write": func() error {
			_, err := pool.Exec(rig.AddOne)
			return err
		},
		"a staged write": func() error {
			ctx, soft, err := bedsql.Begin(context.Background(), bedsql.Staged())
			if err != nil {
				r.T.Fatal(err)
			}
			defer soft.Discard()
			_, err = pool.ExecContext(ctx, rig.AddOne)
			return err
		},
	} {
		if err := write(); err == nil || errors.Is(err, bedsql.ErrPending) || !strings.Contains(err.Error(), "Changing the schema") {
			r.T.Errorf("%s: %v, want a refusal that says what to do", what, err)
		}
	}
	r.WantBalances(before)
	r.WantNoLog()
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
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				r := rig.New(t, db, rig.ExactlyOnce)
				names := map[string]string{"one": schemaFor(t, db), "another": schemaFor(t, db) + "2"}
				at := func(which string) testdb.DB {
					if which == "" {
						return db
					}
					return inSchema(db, names[which])
				}
				r.Account(100)
				r.DB = at(c.from)
				r.Wrapped = r.Open(r.DB.DSN)
				r.MustSendUnder("k", rig.Increment, 1, 1)
				r.WantBalances(101)
				r.WantNoLog()
				if c.older {
					forgetsSchema(r)
				}
				wantRefusedElsewhere(r, r.Open(at(c.to).DSN))
				// Applications with the old setting are not disturbed.
				for range 2 {
					_, replayed := r.MustSendUnder("k", rig.Increment, 1, 1)
					rig.WantReplayed(t, replayed, true)
					r.Wrapped = r.Open(r.DB.DSN)
				}
				r.WantBalances(101)
			})
		})
	}
}

func inLog(r *rig.Rig, statement string) {
	r.T.Helper()
	if _, err := r.LogPool().Exec(statement); err != nil {
		r.T.Fatal(err)
	}
}

func forgetsSchema(r *rig.Rig) {
	r.T.Helper()
	inLog(r, "DELETE FROM bed_log WHERE name = '"+tables.ReceiptSchema(rig.TargetOf(r.T, r.DB).DataSource)+"'")
}

// moves moves the receipts as the documentation says.
func moves(r *rig.Rig, schema string) {
	r.T.Helper()
	name := "'" + rig.TargetOf(r.T, r.DB).DataSource + "'"
	inLog(r, map[string]string{
		testdb.DriverMySQL:    "INSERT INTO bed_log VALUES (CONCAT('receipts-', LEFT(SHA2(" + name + ", 256), 31)), '" + schema + "') ON DUPLICATE KEY UPDATE value = '" + schema + "'",
		testdb.DriverPostgres: "INSERT INTO bed_log VALUES ('receipts-' || left(encode(sha256(" + name + "), 'hex'), 31), '" + schema + "') ON CONFLICT (name) DO UPDATE SET value = '" + schema + "'",
	}[r.LogDB.Driver])
	r.Exec("CREATE SCHEMA "+schema, map[string]string{
		testdb.DriverMySQL:    "RENAME TABLE bed_receipt TO " + schema + ".bed_receipt",
		testdb.DriverPostgres: "ALTER TABLE bed_receipt SET SCHEMA " + schema,
	}[r.DB.Driver])
}

func TestReceiptsMovedIntoASchemaAreMet(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.ExactlyOnce, rig.NoSyncRetry)
		plain, old := r.DB, r.Wrapped
		r.Account(100)
		r.MustSendUnder("k", rig.Increment, 1, 1)
		r.WantNoLog()
		// An entry that was left behind although the log should have been empty.
		p.CutAfter(testproxy.Commit)
		_, err := r.OpenStepwise().Exec(rig.AddOne)
		rig.WantPending(t, err)
		r.WantBalances(102)
		schema := schemaFor(t, db)
		moves(r, schema)
		r.DB = inSchema(plain, schema)
		r.Wrapped = r.Open(r.DB.DSN)
		_, replayed := r.MustSendUnder("k", rig.Increment, 1, 1)
		rig.WantReplayed(t, replayed, true)
		rig.Eventually(t, "the entry of the request that was sent again is removed", func() bool { return len(r.Logs()) == 1 })
		for _, job := range []testdb.DB{plain, r.DB} {
			if report := r.DeliverTo(t, r.WantOneLog().DataSource, job.DSN); report.PushedBack != 1 {
				t.Errorf("the job: %s", report)
			}
			if u := r.WantOneLog(); u.Tries != 0 || u.Parked || !strings.Contains(u.LastError, "Changing the schema") {
				t.Errorf("the entry that was left behind: %+v", u)
			}
		}
		r.WantBalances(102)
		// An instance that runs on makes no second table.
		if _, err := old.Exec(rig.AddOne); err == nil {
			t.Error("an instance with the old setting writes")
		}
		if got := r.Tables(); !slices.Equal(got, []string{"account"}) {
			t.Errorf("a migrator sees %q", got)
		}
		r.WantBalances(102)
	})
}

// silentStorage is a log that neither answers for the place of receipts nor takes entries.
type silentStorage struct {
	txlog.Storage
	silent atomic.Bool
}

func (s *silentStorage) answer() error {
	if s.silent.Load() {
		return rig.ErrLogDown
	}
	return nil
}

func (s *silentStorage) ReceiptSchema(ctx context.Context, dataSource string) (string, bool, error) {
	if err := s.answer(); err != nil {
		return "", false, err
	}
	return s.Storage.ReceiptSchema(ctx, dataSource)
}

func (s *silentStorage) Add(ctx context.Context, lease time.Duration, units ...*entry.Unit) error {
	if err := s.answer(); err != nil {
		return err
	}
	return s.Storage.Add(ctx, lease, units...)
}

// An application that logs on failure may start while its log is down. New requests write at once;
// a possible repetition must first learn the place of the earlier receipt.
func TestSilentLogDelaysOnlyKeyedWrites(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		log := &silentStorage{}
		r := rig.New(t, db, rig.ExactlyOnce, rig.NoSyncRetry, func(c *bedsql.Config) {
			log.Storage, c.Storage, c.Logging = c.Storage, log, bedsql.LogOnFailure
		})
		r.Account(100)
		r.MustSendUnder("k", rig.Increment, 1, 1)
		log.silent.Store(true)
		pool := r.Open(r.DB.DSN)
		if _, err := pool.Exec(rig.AddOne); err != nil {
			t.Errorf("a write: %v", err)
		}
		tx, err := pool.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(rig.AddOne); err != nil {
			t.Errorf("a write in a transaction: %v", err)
		}
		if err := tx.Commit(); err != nil {
			t.Errorf("a transaction: %v", err)
		}
		r.WantBalances(103)
		ctx, _ := rig.Keyed("k")
		if _, err := pool.ExecContext(ctx, r.Q(rig.Increment), 1, 1); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("a request sent again: %v, want ErrNotLogged", err)
		}
		if tx, err := pool.BeginTx(ctx, nil); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("a request sent again as a transaction: %v, want ErrNotLogged", err)
			if err == nil {
				_ = tx.Rollback()
			}
		}
		if _, err := r.Open(inSchema(db, schemaFor(t, db)).DSN).Exec(rig.AddOne); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("a write with a schema: %v, want ErrNotLogged", err)
		}
		r.WantBalances(103)
		log.silent.Store(false)
		r.Wrapped = pool
		_, replayed := r.MustSendUnder("k", rig.Increment, 1, 1)
		rig.WantReplayed(t, replayed, true)
		r.WantBalances(103)
		r.WantNoLog()
	})
}

// The first write under ExactlyOnce of an opened database asks the log for the place of receipts. A
// silent log must not hold up a caller without a deadline.
func TestUnknownReceiptPlaceDelaysNoWrite(t *testing.T) {
	t.Parallel()
	for name, logging := range map[string]bedsql.Logging{"before": bedsql.LogBefore, "on failure": bedsql.LogOnFailure} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := rig.NewLogBehindProxy(t, db, rig.ExactlyOnce, func(c *bedsql.Config) {
					c.Logging, c.LogTimeout = logging, 5*time.Second
				})
				r.Account(100)
				ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
				defer cancel()
				question := testproxy.Text(tables.ReceiptSchema(rig.DataSourceOf(t, db)))
				struck := p.Mute(question)
				if _, err := r.Wrapped.ExecContext(ctx, rig.AddOne); err != nil {
					t.Errorf("a write: %v", err)
				}
				rig.WaitFor(t, "the log is asked", struck)
				r.WantBalances(101)
				struck = p.Mute(question)
				underKey, _ := rig.Keyed("k")
				underKey, cancelKeyed := context.WithTimeout(underKey, rig.Patience)
				defer cancelKeyed()
				if _, err := r.Wrapped.ExecContext(underKey, rig.AddOne); !errors.Is(err, bedsql.ErrNotLogged) || underKey.Err() != nil {
					t.Errorf("a request under a key: %v, want ErrNotLogged", err)
				}
				rig.WaitFor(t, "the log is asked for a request under a key", struck)
				if _, err := r.Wrapped.ExecContext(underKey, rig.AddOne); err != nil {
					t.Errorf("a request under a key, when the log answers: %v", err)
				}
				r.WantBalances(102)
			})
		})
	}
}
