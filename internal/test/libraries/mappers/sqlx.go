package mappers

import (
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/bedsql/bed/internal/test/testdb"
)

var bindTypes = testdb.By[int]{
	MySQL: sqlx.QUESTION, Postgres: sqlx.DOLLAR, SQLite: sqlx.QUESTION,
}

func OpenSqlx(t *testing.T, db testdb.DB, driverName string) *sqlx.DB {
	t.Helper()
	// Like every driver that sqlx does not know, the wrapped one has to be
	// told to it.
	sqlx.BindDriver(driverName, bindTypes.For(db.Driver))
	pool, err := sqlx.Connect(driverName, db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxOpenConns(3)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}
