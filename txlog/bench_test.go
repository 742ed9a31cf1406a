package txlog_test

import (
	"testing"
	"time"

	"github.com/bedsql/bed/internal/testdb"
	"github.com/bedsql/bed/txlog"
)

// What a delivered DML costs in the log: one INSERT and one DELETE.
func BenchmarkAddRemove(b *testing.B) {
	for _, fresh := range []func(testing.TB) testdb.DB{testdb.MySQL, testdb.Postgres, testdb.SQLite} {
		db := fresh(b)
		b.Run(db.Driver, func(b *testing.B) {
			s, err := txlog.Open(b.Context(), db.Driver, db.DSN)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			b.ReportAllocs()
			for b.Loop() {
				u := unit("UPDATE accounts SET balance = ? WHERE id = ?")
				u.Lease.Token = "00000000-0000-0000-0000-000000000000"
				u.Statements[0].Params = "[1,2]"
				if err := s.Add(b.Context(), time.Minute, u); err != nil {
					b.Fatal(err)
				}
				if err := s.Remove(b.Context(), u); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
