package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
)

// writable begins a transaction that announces writes. A server under read_only refuses it
// to the accounts without the right to write, and a Galera node outside the primary
// component refuses it to all. Both answer a ping. A server with a read-only InnoDB still
// accepts it.
func writable(ctx context.Context, conn driver.Conn) error {
	if _, _, err := attempt.Exec(ctx, conn, "START /* does it take writes? */ TRANSACTION READ WRITE", nil); err != nil {
		if class := classify(err); class == dialect.Refused {
			return nil // a server that does not know the words
		}
		return err
	}
	if _, _, err := attempt.Exec(ctx, conn, "ROLLBACK", nil); err != nil {
		return err
	}
	if value, err := attempt.Setting(ctx, conn, "SELECT @@GLOBAL.innodb_read_only"); err == nil && isOn(value) {
		return errors.New("it takes no writes: innodb_read_only is on")
	}
	return nil
}

// isReadOnly reports whether err means that this server accepts no writes.
func isReadOnly(err error) bool {
	var server *mysql.MySQLError
	if !errors.As(err, &server) {
		return false
	}
	if server.Number == 1290 { // ER_OPTION_PREVENTS_STATEMENT names the option, untranslated
		return strings.Contains(strings.ReplaceAll(server.Message, "_", "-"), "read-only")
	}
	return codes.Outage(names(server)...)
}
