package acceptance

import (
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
)

// Under each key the first request is applied, then the second one sent.
func TestKeyReusedSaysWhatDiffersAndNoValue(t *testing.T) {
	t.Parallel()
	type statement struct {
		query string
		args  []any
	}
	set := func(balance, id any) statement { return statement{setBalance, []any{balance, id}} }
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100, 100)
		send := func(local bool, key, own string, all []statement) error {
			ctx, k := keyed(key)
			if own != "" {
				k.SetFingerprint(own)
			}
			if !local {
				_, err := r.wrapped.ExecContext(ctx, r.q(all[0].query), all[0].args...)
				return err
			}
			tx, err := r.wrapped.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			for _, s := range all {
				_, one := tx.ExecContext(ctx, r.q(s.query), s.args...)
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
			wantReused(t, c.what, err)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "700") {
				t.Errorf("%s: got %v, want %q", c.what, err, c.want)
			}
		}
		if err := send(false, "owned", "7001", first); err != nil {
			t.Fatal(err)
		}
		for own, want := range map[string]string{"7002": "its own fingerprint (SetFingerprint) differs", "": "this one has none"} {
			err := send(false, "owned", own, first)
			wantReused(t, want, err)
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "700") {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		r.wantNoLog()
	})
}
