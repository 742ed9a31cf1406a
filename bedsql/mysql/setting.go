package mysql

import (
	"context"
	"database/sql/driver"

	"github.com/bedsql/bed/internal/attempt"
)

// setting implements Dialect.Setting.
func setting(ctx context.Context, conn driver.Conn, name string) (string, error) {
	return attempt.Setting(ctx, conn, "SELECT @@SESSION."+name)
}
