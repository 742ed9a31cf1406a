package keys

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// keyedWays are the kinds of write that take a key.
var keyedWays = map[string]func(ctx context.Context, pool *sql.DB) error{
	"a write": func(ctx context.Context, pool *sql.DB) error {
		_, err := pool.ExecContext(ctx, rig.AddOne)
		return err
	},
	"a local transaction": func(ctx context.Context, pool *sql.DB) error {
		tx, err := pool.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, rig.AddOne)
		return errors.Join(err, tx.Commit())
	},
	"a staged group": func(ctx context.Context, pool *sql.DB) error {
		ctx, group, err := bedsql.Begin(ctx, bedsql.Staged())
		if err != nil {
			return err
		}
		_, err = pool.ExecContext(ctx, rig.AddOne)
		return errors.Join(err, group.End(context.Background()))
	},
}

func TestKeySecondWriteIsRefusedUnsent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		var (
			r *rig.Rig
			p *testproxy.Proxy
		)
		if db.Driver == testdb.DriverSQLite {
			r = rig.New(t, db)
		} else {
			r, p = rig.NewBehindProxy(t, db)
		}
		r.Account(0)
		balance := 0
		for first, send := range keyedWays {
			for second, again := range keyedWays {
				what := second + " after " + first
				ctx, k := rig.Keyed(what)
				if err := send(ctx, r.Wrapped); err != nil {
					t.Fatal(err)
				}
				balance++
				sent := func() int { return 0 }
				if p != nil {
					sent = p.Count(func(m []byte) bool { return !testproxy.Text("-- ping")(m) }) // pgx's own, of an idle connection
				}
				rig.WantNamesKeyPart(t, what, again(ctx, r.Wrapped))
				if n := sent(); n != 0 {
					t.Errorf("%s: %d messages reached the server, want none", what, n)
				}
				rig.WantReplayed(t, k.Replayed(), false)
				r.WantBalances(balance)
			}
		}
		r.WantNoLog()
	})
}

func TestKeyOfAnOpenTransactionIsTaken(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		ctx, tx, _ := r.BeginUnder("k")
		for second, send := range keyedWays {
			rig.WantNamesKeyPart(t, second, send(ctx, r.Wrapped))
			if err := send(bedsql.WithKeyPart(ctx, second), r.Wrapped); err != nil {
				t.Errorf("%s under a part: %v", second, err)
			}
		}
		_, err := tx.ExecContext(bedsql.WithKeyPart(ctx, "stock"), rig.AddOne)
		rig.WantUnusable(t, "a write under a part in the transaction of the key", err)
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		r.WantBalances(len(keyedWays))
	})
}

// The job may still apply the pending write.
func TestKeyOfAPendingWriteIsTaken(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, rig.Impatient(db), rig.NoSyncRetry)
		r.Account(0)
		r.ReceiptTable()
		free := r.BlockRow(1)
		ctx, _ := rig.Keyed("k")
		_, err := r.Wrapped.ExecContext(ctx, rig.AddOne)
		rig.WantPending(t, err)
		free()
		_, err = r.Wrapped.ExecContext(ctx, rig.AddOne)
		rig.WantNamesKeyPart(t, "a second write", err)
		r.WantBalances(0)
		r.WantOneLog()
		r.Drain(r.Job())
		r.WantBalances(1)
	})
}

// The first sending breaks off half-way.
func TestKeyResendAppliesTheMissingParts(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		logDB := testdb.NewLog(t, db.Driver)
		rigs := rig.News(t, logDB)
		parts := []string{"", "stock", "audit"}
		for i, stopsAfter := range []int{4, -1, -1} {
			ctx, k := rig.Keyed("k")
			n := 0
			for _, part := range parts {
				for way, send := range keyedWays {
					under := bedsql.WithKeyPart(bedsql.WithKeyPart(ctx, way), part)
					for _, r := range rigs {
						if n++; stopsAfter < 0 || n <= stopsAfter {
							if err := send(under, r.Wrapped); err != nil {
								t.Errorf("%s under %q: %v", way, part, err)
							}
						}
					}
				}
			}
			rig.WantReplayed(t, k.Replayed(), i > 0)
		}
		for _, r := range rigs {
			r.WantBalances(100+len(parts)*len(keyedWays), 100)
			r.WantReceipts(len(parts) * len(keyedWays))
		}
		rigs[0].WantNoLog()
	})
}

func TestKeyReplayedReportsAnAnswerUnderAnyPart(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		for i, want := range []bool{false, true} {
			ctx, k := rig.Keyed("k")
			k.SetFingerprint("pay")
			r.Must(r.Wrapped, rig.AddOne) // not under the key
			r.Stage(bedsql.WithKeyPart(ctx, "stock"), r.Wrapped, rig.AddOne)
			rig.WantReplayed(t, k.Replayed(), want)
			if i > 0 {
				r.Stage(ctx, r.Wrapped, rig.AddOne)
				rig.WantReplayed(t, k.Replayed(), true)
			}
		}
		r.WantBalances(4)
		ctx, k := rig.Keyed("k")
		k.SetFingerprint("refund")
		_, err := r.Wrapped.ExecContext(bedsql.WithKeyPart(ctx, "stock"), rig.AddOne)
		rig.WantReused(t, "another fingerprint of the request", err)
	})
}

// The handler runs again after a 5xx, and its part does not.
func TestHTTPKeyPartIsAppliedOnce(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		var pool *sql.DB
		fails := true
		s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			_, err := pool.ExecContext(r.Context(), rig.AddOne)
			rig.WantNamesKeyPart(t, "a write beside the request's transaction", err)
			if _, err := pool.ExecContext(bedsql.WithKeyPart(r.Context(), "audit"), rig.AddOne); err != nil {
				t.Error(err)
			}
			if rig.Pays(w, r) && fails {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}, func(c *bedhttp.Config) { pool = c.DB })
		s.Wants(s.Asks("k", "{}"), 500, false)
		fails = false
		s.Wants(s.Asks("k", "{}"), 200, false)
		s.Wants(s.Asks("k", "{}"), 200, true)
		s.WantsRuns(2, 2)
	})
}
