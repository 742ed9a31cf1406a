package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// keyedWays are the kinds of write that take a key.
var keyedWays = map[string]func(ctx context.Context, pool *sql.DB) error{
	"a write": func(ctx context.Context, pool *sql.DB) error {
		_, err := pool.ExecContext(ctx, addOne)
		return err
	},
	"a local transaction": func(ctx context.Context, pool *sql.DB) error {
		tx, err := pool.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, addOne)
		return errors.Join(err, tx.Commit())
	},
	"a staged group": func(ctx context.Context, pool *sql.DB) error {
		ctx, group, err := bedsql.Begin(ctx, bedsql.Staged())
		if err != nil {
			return err
		}
		_, err = pool.ExecContext(ctx, addOne)
		return errors.Join(err, group.End(context.Background()))
	},
}

func wantNamesKeyPart(t testing.TB, what string, err error) {
	t.Helper()
	if wantUnusable(t, what, err); err != nil && !strings.Contains(err.Error(), `bedsql.WithKeyPart(ctx, "stock")`) {
		t.Errorf("%s: %v, want it to name WithKeyPart", what, err)
	}
}

func TestKeySecondWriteIsRefusedUnsent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		var (
			r *rig
			p *testproxy.Proxy
		)
		if db.Driver == testdb.DriverSQLite {
			r = newRig(t, db)
		} else {
			r, p = newRigBehindProxy(t, db)
		}
		r.account(0)
		balance := 0
		for first, send := range keyedWays {
			for second, again := range keyedWays {
				what := second + " after " + first
				ctx, k := keyed(what)
				if err := send(ctx, r.wrapped); err != nil {
					t.Fatal(err)
				}
				balance++
				sent := func() int { return 0 }
				if p != nil {
					sent = p.Count(func(m []byte) bool { return !testproxy.Text("-- ping")(m) }) // pgx's own, of an idle connection
				}
				wantNamesKeyPart(t, what, again(ctx, r.wrapped))
				if n := sent(); n != 0 {
					t.Errorf("%s: %d messages reached the server, want none", what, n)
				}
				wantReplayed(t, k.Replayed(), false)
				r.wantBalances(balance)
			}
		}
		r.wantNoLog()
	})
}

func TestKeyOfAnOpenTransactionIsTaken(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		ctx, tx, _ := r.beginUnder("k")
		for second, send := range keyedWays {
			wantNamesKeyPart(t, second, send(ctx, r.wrapped))
			if err := send(bedsql.WithKeyPart(ctx, second), r.wrapped); err != nil {
				t.Errorf("%s under a part: %v", second, err)
			}
		}
		_, err := tx.ExecContext(bedsql.WithKeyPart(ctx, "stock"), addOne)
		wantUnusable(t, "a write under a part in the transaction of the key", err)
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(len(keyedWays))
	})
}

// The job may still apply the pending write.
func TestKeyOfAPendingWriteIsTaken(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, impatient(db), noSyncRetry)
		r.account(0)
		r.receiptTable()
		free := r.blockRow(1)
		ctx, _ := keyed("k")
		_, err := r.wrapped.ExecContext(ctx, addOne)
		wantPending(t, err)
		free()
		_, err = r.wrapped.ExecContext(ctx, addOne)
		wantNamesKeyPart(t, "a second write", err)
		r.wantBalances(0)
		r.wantOneLog()
		r.drain(r.job())
		r.wantBalances(1)
	})
}

// The first sending breaks off half-way.
func TestKeyResendAppliesTheMissingParts(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, logDB testdb.DB) {
		rigs := newRigs(t, logDB)
		parts := []string{"", "stock", "audit"}
		for i, stopsAfter := range []int{4, -1, -1} {
			ctx, k := keyed("k")
			n := 0
			for _, part := range parts {
				for way, send := range keyedWays {
					under := bedsql.WithKeyPart(bedsql.WithKeyPart(ctx, way), part)
					for _, r := range rigs {
						if n++; stopsAfter < 0 || n <= stopsAfter {
							if err := send(under, r.wrapped); err != nil {
								t.Errorf("%s under %q: %v", way, part, err)
							}
						}
					}
				}
			}
			wantReplayed(t, k.Replayed(), i > 0)
		}
		for _, r := range rigs {
			r.wantBalances(100+len(parts)*len(keyedWays), 100)
			r.wantReceipts(len(parts) * len(keyedWays))
		}
		rigs[0].wantNoLog()
	})
}

func TestKeyReplayedReportsAnAnswerUnderAnyPart(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		for i, want := range []bool{false, true} {
			ctx, k := keyed("k")
			k.SetFingerprint("pay")
			r.must(r.wrapped, addOne) // not under the key
			r.stage(bedsql.WithKeyPart(ctx, "stock"), r.wrapped, addOne)
			wantReplayed(t, k.Replayed(), want)
			if i > 0 {
				r.stage(ctx, r.wrapped, addOne)
				wantReplayed(t, k.Replayed(), true)
			}
		}
		r.wantBalances(4)
		ctx, k := keyed("k")
		k.SetFingerprint("refund")
		_, err := r.wrapped.ExecContext(bedsql.WithKeyPart(ctx, "stock"), addOne)
		wantReused(t, "another fingerprint of the request", err)
	})
}

// The handler runs again after a 5xx, and its part does not.
func TestHTTPKeyPartIsAppliedOnce(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		var pool *sql.DB
		fails := true
		s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
			_, err := pool.ExecContext(r.Context(), addOne)
			wantNamesKeyPart(t, "a write beside the request's transaction", err)
			if _, err := pool.ExecContext(bedsql.WithKeyPart(r.Context(), "audit"), addOne); err != nil {
				t.Error(err)
			}
			if pays(w, r) && fails {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}, func(c *bedhttp.Config) { pool = c.DB })
		s.wants(s.asks("k", "{}"), 500, false)
		fails = false
		s.wants(s.asks("k", "{}"), 200, false)
		s.wants(s.asks("k", "{}"), 200, true)
		s.wantsRuns(2, 2)
	})
}
