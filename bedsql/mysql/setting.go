package mysql

import (
	"context"
	"database/sql/driver"
)

// setting implements Dialect.Setting.
func setting(ctx context.Context, conn driver.Conn, name string) (string, error) {
	return sysvar(ctx, conn, "SESSION."+name)
}
