package acceptance

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/testdb"
	"github.com/bedsql/bed/internal/testproxy"
	"github.com/bedsql/bed/txlog"
)

// writerTask is what the program "writer" is told to do: one unit of writes
// through the wrapped driver.
type writerTask struct {
	Target, Log testdb.DB
	Lease       time.Duration
	// Statements are run in autocommit if it is one, else in a local transaction.
	Statements []string
}

// writerMain is the program "writer". It says "delivered" when its write has
// returned without error.
func writerMain() int {
	if err := write(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stderr, "delivered")
	return 0
}

func write(ctx context.Context, encoded string) error {
	var task writerTask
	if err := json.Unmarshal([]byte(encoded), &task); err != nil {
		return err
	}
	storage, err := txlog.Open(ctx, task.Log.Driver, task.Log.DSN)
	if err != nil {
		return err
	}
	defer func() { _ = storage.Close() }()
	tgt, err := target(task.Target.Driver)(task.Target.DSN)
	if err != nil {
		return err
	}
	pool, err := bedsql.OpenDB(tgt, bedsql.Config{Storage: storage, Lease: task.Lease, Logger: quiet()})
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }()
	if len(task.Statements) == 1 {
		_, err := pool.ExecContext(ctx, task.Statements[0])
		return err
	}
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for _, s := range task.Statements {
		if _, err := tx.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return tx.Commit()
}
