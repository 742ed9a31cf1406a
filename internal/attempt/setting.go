package attempt

import (
	"context"
	"database/sql/driver"
	"fmt"
)

// Setting gives the one value that query gives.
func Setting(ctx context.Context, conn driver.Conn, query string) (value string, err error) {
	rows, err := Ask(ctx, conn, query)
	if err != nil {
		return "", err
	}
	if len(rows) != 1 || len(rows[0]) != 1 || rows[0][0] == nil {
		return "", fmt.Errorf("%s: no value", query)
	}
	return text(rows[0][0]), nil
}
