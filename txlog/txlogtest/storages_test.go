package txlogtest_test

import (
	"context"
	"database/sql"
	"reflect"
	"testing"

	"go.uber.org/goleak"

	_ "github.com/bedsql/bed/bedsql/mysql"
	_ "github.com/bedsql/bed/bedsql/postgres"
	_ "github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/test/leaks"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
	"github.com/bedsql/bed/txlog/txlogtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaks.Patient(m)) }

func TestMemoryKeepsTheContract(t *testing.T) {
	t.Parallel()
	txlogtest.Exercise(t, func(*testing.T) txlog.Storage { return txlog.NewMemory() })
}

// corruptible can take a statement's row away from a unit.
type corruptible struct {
	*txlog.SQLStorage
	db *sql.DB
}

func (c corruptible) Corrupt(ctx context.Context, id string) error {
	_, err := c.db.ExecContext(ctx, "DELETE FROM transaction_log WHERE id = '"+id[:len(id)-1]+"1'")
	return err
}

func TestSQLKeepsTheContract(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		pool := db.Open(t)
		txlogtest.Exercise(t, func(t *testing.T) txlog.Storage {
			s, err := txlog.Open(t.Context(), db.Driver, db.DSN, txlog.WithMaxConns(8))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := pool.ExecContext(t.Context(), "DELETE FROM transaction_log"); err != nil {
				t.Fatal(err)
			}
			return corruptible{s, pool}
		})
	})
}

// The methods of bed's own packages are in logdb.SQL.
func TestApplicationsSeeOnlyTheMethodsOfStorage(t *testing.T) {
	t.Parallel()
	storage, all := reflect.TypeFor[txlog.Storage](), reflect.TypeFor[*txlog.SQLStorage]()
	for i := range all.NumMethod() {
		name := all.Method(i).Name
		if _, ok := storage.MethodByName(name); !ok && name != "Driver" && name != "Location" {
			t.Errorf("SQLStorage has the method %s", name)
		}
	}
}
