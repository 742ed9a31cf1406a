package keys

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// Under each key the first request is applied, then the second one sent.
func TestKeyReusedSaysWhatDiffersAndNoValue(t *testing.T) {
	t.Parallel()
	type statement struct {
		query string
		args  []any
	}
	set := func(balance, id any) statement { return statement{rig.SetBalance, []any{balance, id}} }
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100, 100)
		send := func(local bool, key, own string, all []statement) error {
			ctx, k := rig.Keyed(key)
			if own != "" {
				k.SetFingerprint(own)
			}
			if !local {
				_, err := r.Wrapped.ExecContext(ctx, r.Q(all[0].query), all[0].args...)
				return err
			}
			tx, err := r.Wrapped.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			for _, s := range all {
				_, one := tx.ExecContext(ctx, r.Q(s.query), s.args...)
				err = errors.Join(err, one)
			}
			if err != nil {
				return errors.Join(err, tx.Rollback())
			}
			return tx.Commit()
		}
		first := []statement{set(7001, 1), set(7002, 2)}
		cases := []struct {
			what, own, want string
			local           bool
			second          []statement
		}{
			{"one", "", "parameter 1 of its statement 1 differs", false, []statement{set(7003, 1)}},
			{"the other", "", "parameter 2 of its statement 1 differs", false, []statement{set(7001, 2)}},
			{"type", "", "parameter 1 of its statement 1 differs", false, []statement{set("7001", 1)}},
			{"sql", "", "the SQL of its statement 1 differs", false, []statement{{"UPDATE account SET balance = 0 + ? WHERE id = ?", []any{7001, 1}}}},
			{"own", "7009", "a fingerprint of its own", false, first},
			{"one of a transaction", "", "parameter 1 of its statement 2 differs", true, []statement{set(7001, 1), set(7003, 2)}},
			{"fewer", "", "it has 1 statement now, and had 2", true, first[:1]},
			{"more", "", "it has 3 statements now, and had 2", true, append(first[:2:2], set(7003, 1))},
			{"own of a transaction", "7009", "a fingerprint of its own", true, first},
		}
		for _, c := range cases {
			if err := send(c.local, c.what, "", first); err != nil {
				t.Fatal(err)
			}
			err := send(c.local, c.what, c.own, c.second)
			rig.WantReused(t, c.what, err)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "700") {
				t.Errorf("%s: got %v, want %q", c.what, err, c.want)
			}
		}
		if err := send(false, "owned", "7001", first); err != nil {
			t.Fatal(err)
		}
		for own, want := range map[string]string{"7002": "its own fingerprint (SetFingerprint) differs", "": "this one has none"} {
			err := send(false, "owned", own, first)
			rig.WantReused(t, want, err)
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "700") {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		r.WantNoLog()
	})
}

// The same request comes from another process, under another trace, zone and mode of the
// driver, with other Go types.
func TestKeyKnowsTheSameRequestInAnotherForm(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 28, 13, 0, 0, 0, time.UTC)
	const insert = "INSERT INTO event (id, at, note) VALUES (?, ?, ?)"
	type request struct {
		pool *sql.DB
		text string
		args []any
	}
	ways := map[string]func(r *rig.Rig, ctx context.Context, q request) error{
		"a write": func(r *rig.Rig, ctx context.Context, q request) error {
			_, err := q.pool.ExecContext(ctx, r.Q(q.text), q.args...)
			return err
		},
		"a prepared write": func(r *rig.Rig, ctx context.Context, q request) error {
			st, err := q.pool.PrepareContext(ctx, r.Q(q.text))
			if err != nil {
				return err
			}
			defer func() { _ = st.Close() }()
			_, err = st.ExecContext(ctx, q.args...)
			return err
		},
		"a local transaction": func(r *rig.Rig, ctx context.Context, q request) error {
			tx, err := q.pool.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if _, err = tx.ExecContext(ctx, r.Q(q.text), q.args...); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			return tx.Commit()
		},
		"a staged soft transaction": func(r *rig.Rig, ctx context.Context, q request) error {
			ctx, st, err := bedsql.Begin(ctx, bedsql.Staged())
			if err != nil {
				return err
			}
			_, err = q.pool.ExecContext(ctx, r.Q(q.text), q.args...)
			return errors.Join(err, st.End(context.Background()))
		},
	}
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Exec("CREATE TABLE event (id INT PRIMARY KEY, at " + testdb.By[string]{MySQL: "DATETIME(6)", Postgres: "timestamptz", SQLite: "DATETIME"}.For(db.Driver) + ", note VARCHAR(40))")
		pools := []*sql.DB{r.Wrapped, r.Open(db.DSN)}
		switch db.Driver {
		case testdb.DriverMySQL:
			pools = append(pools, r.Open(db.DSN+"&interpolateParams=true"))
		case testdb.DriverPostgres:
			for _, mode := range []string{"cache_describe", "describe_exec", "exec", "simple_protocol"} {
				pools = append(pools, r.Open(db.DSN+"&default_query_exec_mode="+mode))
			}
		}
		id := 0
		for way, send := range ways {
			id++
			for i, q := range []request{
				{r.Wrapped, insert + " /*traceparent='00-1-01'*/", []any{id, at, "note"}},
				{r.Wrapped, "/* one */ " + insert + "; ", []any{int8(id), at.In(time.FixedZone("CET", 3600)), "note"}},
				{r.Wrapped, insert + " -- two", []any{uint32(id), &at, sql.NullString{String: "note", Valid: true}}},
			} {
				for n, pool := range pools {
					ctx, k := rig.Keyed(way)
					q.pool = pool
					if err := send(r, ctx, q); err != nil {
						t.Errorf("%s %d, pool %d: %v", way, i, n, err)
					}
					rig.WantReplayed(t, k.Replayed(), i+n > 0)
				}
			}
			ctx, _ := rig.Keyed(way)
			rig.WantReused(t, way, send(r, ctx, request{r.Wrapped, insert, []any{id, at, "note /* two */"}}))
			ctx, _ = rig.Keyed(way)
			rig.WantReused(t, way, send(r, ctx, request{r.Wrapped, insert, []any{id, at.Add(time.Hour), "note"}}))
		}
		if n := r.Count("SELECT COUNT(*) FROM event"); n != len(ways) {
			t.Errorf("%d rows, want %d", n, len(ways))
		}
		r.WantNoLog()
	})
}

func TestRefusedKeysInNumbersAreSaidOnce(t *testing.T) {
	t.Parallel()
	logger, said := logtest.NewNullLogger()
	r := rig.New(t, testdb.SQLite(t), func(c *bedsql.Config) { c.Logger = logger })
	r.Account(100)
	r.MustSendUnder("k", rig.SetBalance, 1, 1)
	for i := range 20 {
		_, _, err := r.SendUnder("k", rig.SetBalance, 7000+i, 1)
		rig.WantReused(t, "another balance", err)
	}
	warnings := 0
	for _, e := range said.AllEntries() {
		if strings.Contains(e.Message, "idempotency keys were used") {
			warnings++
			if line := fmt.Sprint(e.Message, e.Data["last"]); !strings.Contains(line, "parameter 1 of its statement 1") || strings.Contains(line, "700") {
				t.Errorf("it says %s", line)
			}
		}
	}
	if warnings != 1 {
		t.Errorf("%d warnings, want 1", warnings)
	}
}
