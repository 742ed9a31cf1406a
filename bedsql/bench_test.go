package bedsql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// idle is a driver without any work, so that the benchmark measures only the wrapper.
type idle struct{}

func (idle) Connect(context.Context) (driver.Conn, error) { return idle{}, nil }
func (idle) Driver() driver.Driver                        { return nil }
func (idle) Prepare(string) (driver.Stmt, error)          { return nil, driver.ErrSkip }
func (idle) Begin() (driver.Tx, error)                    { return nil, driver.ErrSkip }
func (idle) Close() error                                 { return nil }
func (idle) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(1), nil
}

// noLog is a log that keeps nothing.
type noLog struct{ *txlog.Memory }

func (noLog) Add(_ context.Context, lease time.Duration, units ...*entry.Unit) error {
	for _, u := range units {
		u.Lease.Deadline = time.Now().Add(lease)
	}
	return nil
}
func (noLog) Remove(context.Context, ...*entry.Unit) error { return nil }

// BenchmarkWrite measures the wrapper's own cost of a write.
func BenchmarkWrite(b *testing.B) {
	contenders := map[string]driver.Connector{"bare": idle{}}
	for name, logging := range map[string]bedsql.Logging{"wrapped": bedsql.LogBefore, "alongside": bedsql.LogAlongside, "on failure": bedsql.LogOnFailure} {
		var err error
		contenders[name], err = bedsql.NewConnector(delivery.Target{Connector: idle{}, DataSource: "idle"},
			bedsql.Config{Storage: noLog{txlog.NewMemory()}, Logging: logging})
		if err != nil {
			b.Fatal(err)
		}
	}
	for name, c := range contenders {
		b.Run(name, func(b *testing.B) {
			db := sql.OpenDB(c)
			defer func() { _ = db.Close() }()
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := db.ExecContext(ctx, "UPDATE account SET balance = ? WHERE id = ?", 42, "a"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRead measures the wrapper's cost of a statement that passes through.
func BenchmarkRead(b *testing.B) {
	f := &fakeDriver{conn: func(*fakeDriver) driver.Conn { return silentConn{} }}
	wrapped, err := bedsql.NewConnector(delivery.Target{Connector: f, DataSource: "idle"}, bedsql.Config{Storage: noLog{txlog.NewMemory()}})
	if err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]driver.Connector{"bare": f, "wrapped": wrapped} {
		b.Run(name, func(b *testing.B) {
			db := sql.OpenDB(c)
			defer func() { _ = db.Close() }()
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				rows, err := db.QueryContext(ctx, "SELECT n FROM t WHERE id = 1")
				if err != nil {
					b.Fatal(err)
				}
				if err := rows.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
