package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/go-sql-driver/mysql"
)

// numUnknownSystemVariable is the answer of a server that does not know the
// variable asked for.
const numUnknownSystemVariable = 1193

// probeTimeout bounds a question to the server whose answer it has at hand.
const probeTimeout = 5 * time.Second

// transactionLost reports whether the server answered a statement inside a
// transaction by rolling all of it back. The session lives on then, and what
// follows would be committed without what went before.
func transactionLost(ctx context.Context, conn driver.Conn, err error) bool {
	var server *mysql.MySQLError
	if !errors.As(err, &server) {
		return false
	}
	switch server.Number {
	case 1206, // ER_LOCK_TABLE_FULL
		1213, // ER_LOCK_DEADLOCK; Galera: the certification failed
		1402, // ER_XA_RBROLLBACK
		1613, // ER_XA_RBTIMEOUT
		1614, // ER_XA_RBDEADLOCK
		3101: // ER_TRANSACTION_ROLLBACK_DURING_COMMIT
		return true
	case 1205: // ER_LOCK_WAIT_TIMEOUT: the statement alone, unless configured otherwise
		return sysvarIs(ctx, conn, "innodb_rollback_on_timeout", "1")
	case 1020, // ER_CHECKREAD: MariaDB with innodb_snapshot_isolation
		1180, // ER_ERROR_DURING_COMMIT
		1181, // ER_ERROR_DURING_ROLLBACK
		1317, // ER_QUERY_INTERRUPTED
		1969: // ER_STATEMENT_TIMEOUT
		// MariaDB can be asked. MySQL cannot, and undoes the statement alone.
		return sysvarIs(ctx, conn, "in_transaction", "0")
	}
	return false
}

// stillOpen reports whether a statement that commits implicitly failed with err
// before it did. MariaDB can be asked. Of MySQL it is known of the errors that
// reading the text gives, and of those of a transaction's characteristics.
func stillOpen(ctx context.Context, conn driver.Conn, err error) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	if open, qerr := sysvar(ctx, conn, "in_transaction"); qerr == nil {
		return open == "1"
	}
	var server *mysql.MySQLError
	if !errors.As(err, &server) {
		return false
	}
	switch server.Number {
	case 1047, // ER_UNKNOWN_COM_ERROR: Galera, the node is not ready
		1064, // ER_PARSE_ERROR
		1065, // ER_EMPTY_QUERY
		1115, // ER_UNKNOWN_CHARACTER_SET
		1149, // ER_SYNTAX_ERROR
		1273, // ER_UNKNOWN_COLLATION
		1290, // ER_OPTION_PREVENTS_STATEMENT: the server is read-only
		1351, // ER_VIEW_SELECT_VARIABLE
		1425, // ER_TOO_BIG_SCALE
		1426, // ER_TOO_BIG_PRECISION
		1427, // ER_M_BIGGER_THAN_D
		1568, // ER_CANT_CHANGE_TX_CHARACTERISTICS
		1792: // ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
		return true
	}
	return false
}

// sysvarIs reports whether a session variable has the given value; false when
// the server does not know it, true when it cannot be read: the safe
// assumption, because nothing more is written into the session then.
func sysvarIs(ctx context.Context, conn driver.Conn, name, want string) bool {
	// The caller's context may be what ended the statement.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	got, err := sysvar(ctx, conn, name)
	var server *mysql.MySQLError
	if errors.As(err, &server) && server.Number == numUnknownSystemVariable {
		return false
	}
	return err != nil || got == want
}

func sysvar(ctx context.Context, conn driver.Conn, name string) (string, error) {
	queryer, ok := delivery.Bare(conn).(driver.QueryerContext)
	if !ok {
		return "", errors.New("the connection takes no queries")
	}
	rows, err := queryer.QueryContext(ctx, "SELECT @@"+name, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = rows.Close() }()
	dest := make([]driver.Value, 1)
	if err := rows.Next(dest); err != nil {
		return "", err
	}
	if text, ok := dest[0].([]byte); ok {
		return string(text), nil
	}
	return fmt.Sprint(dest[0]), nil
}
