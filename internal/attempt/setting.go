package attempt

import (
	"context"
	"database/sql/driver"
	"fmt"
)

// Setting gives the one value that query gives.
func Setting(ctx context.Context, conn driver.Conn, query string) (value string, err error) {
	rows, _, err := Query(ctx, conn, query, nil)
	if err != nil {
		return "", err
	}
	buffered, err := Buffer(rows)
	if err != nil {
		return "", err
	}
	if len(buffered.rows) != 1 || len(buffered.rows[0]) != 1 || buffered.rows[0][0] == nil {
		return "", fmt.Errorf("%s: no value", query)
	}
	return text(buffered.rows[0][0]), nil
}
