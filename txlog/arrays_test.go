package txlog_test

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
)

// oddText returns a text that is special in some kind of value lists, or resembles no value.
func oddText(r *rand.Rand) string {
	special := []string{`"`, `\`, `{`, `}`, `,`, `'`, ` `, "\n", "\t", `NULL`, `null`, `$1`, `?`, `::`, `é`, `漢`, "\x7f", "a", "0", ";--"}
	var b strings.Builder
	for range r.IntN(6) {
		b.WriteString(special[r.IntN(len(special))])
	}
	return b.String()
}

func TestUnitsWrittenTogetherComeBackIntact(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := open(t, db, oneWrite)
		for seed := range uint64(12) {
			r := rand.New(rand.NewPCG(seed, 1))
			// Each round keeps different parts in common.
			same := func(common bool, f func() string) func() string {
				if !common {
					return f
				}
				v := f()
				return func() string { return v }
			}
			text := func() string { return oddText(r) }
			name := func() string { return "a" + oddText(r) + "z" }
			bit := func(n int) bool { return seed>>n&1 == 1 }
			source, sql := same(bit(0), name), same(bit(1), name)
			settings, reason := same(bit(2), text), same(bit(3), text)
			fingerprint := same(bit(0), text)
			units := make([]*entry.Unit, 9)
			for i := range units {
				u := &entry.Unit{ID: entry.NewID(), DataSource: source(), Settings: settings(), NotReplayable: reason()}
				for range 1 + r.IntN(1+int(seed%3)) {
					u.Statements = append(u.Statements, entry.Statement{SQL: sql(), Params: `["` + strings.Repeat("x", r.IntN(3)) + `"]`})
				}
				switch {
				case bit(1):
					u.Receipt = u.ID
				case r.IntN(2) == 0:
					u.Receipt, u.Fingerprint = entry.NewID(), fingerprint()
				}
				if bit(2) && r.IntN(2) == 0 {
					u.TransactionID = entry.NewID()
				}
				units[i] = u
			}
			lease := func(i int) time.Duration { return time.Duration(1+i%(1+int(seed%2))) * time.Minute }
			mustAll(t, together(t, s.Adding(), len(units), func(i int) error { return s.Add(t.Context(), lease(i), units[i]) })())
			for i, u := range units {
				got, err := s.Get(t.Context(), u.ID)
				if err != nil {
					t.Fatal(err)
				}
				want := *u
				if want.TransactionID == "" {
					want.TransactionID = want.ID
				}
				want.Lease, want.InDoubt, want.CreatedAt, want.NextTry = got.Lease, got.InDoubt, got.CreatedAt, got.NextTry
				want.Leased, want.ReadAt = true, got.ReadAt
				if !reflect.DeepEqual(got, &want) {
					t.Fatalf("seed %d: written\n%+v\ncame back as\n%+v", seed, want, *got)
				}
				// PostgreSQL reads its clock for each of the two.
				if left := got.NextTry.Sub(got.CreatedAt); left < lease(i) || left > lease(i)+time.Minute/2 {
					t.Fatalf("seed %d: unit %d is leased for %v, want %v", seed, i, left, lease(i))
				}
			}
			if err := s.Remove(t.Context(), units...); err != nil {
				t.Fatalf("seed %d: the leases are not those that were written: %v", seed, err)
			}
		}
	})
}
