package mysql

import (
	"context"
	"database/sql/driver"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/go-sql-driver/mysql"
)

// probeTimeout bounds a query that the server can answer at once.
const probeTimeout = 5 * time.Second

// transactionLost reports whether the server's error rolled back the whole transaction. The
// session lives on, and later statements would be committed without the earlier ones.
func transactionLost(ctx context.Context, conn driver.Conn, err error) bool {
	server := serverError(err)
	if server == nil {
		return false
	}
	if whole, sure := takes(ctx, conn, server); sure {
		return whole
	}
	// MariaDB can be queried.
	if open, err := txIsOpen(ctx, conn); !isUnknownVariable(err) {
		return !open
	}
	// MySQL undoes only the statement, except after errors that end a transaction.
	return hasNumber(server, 1180, 1181)
}

// takes reports whether an error rolls back the whole transaction. If it does so only sometimes, or
// is not listed, sure is false.
func takes(ctx context.Context, conn driver.Conn, server *mysql.MySQLError) (whole, sure bool) {
	switch server.Number {
	case 1206, // ER_LOCK_TABLE_FULL
		1213, // ER_LOCK_DEADLOCK; Galera: the certification failed
		1402, // ER_XA_RBROLLBACK
		1613, // ER_XA_RBTIMEOUT
		1614, // ER_XA_RBDEADLOCK
		3101: // ER_TRANSACTION_ROLLBACK_DURING_COMMIT
		return true, true
	case 1205: // ER_LOCK_WAIT_TIMEOUT: the statement alone, unless configured otherwise
		// If the variable is unreadable, assume the worst: no more writes in this session.
		if on, err := sysvar(ctx, conn, "innodb_rollback_on_timeout"); on == "1" || err != nil && !isUnknownVariable(err) {
			return true, true
		}
		return false, true
	case 1290, 1792: // a server, or a transaction, that is read-only
		return false, true
	}
	if strings.HasPrefix(string(server.SQLState[:]), "40") { // transaction rollback
		return true, true
	}
	switch classify(server) {
	case dialect.Refused, dialect.Duplicate: // the statement was at fault, and it alone is undone
		return false, true
	}
	// Among them 1020 (innodb_snapshot_isolation), 1180 and 1181 (an error during COMMIT or
	// ROLLBACK), 1317 (KILL QUERY) and 1969 (max_statement_time).
	return false, false
}

// txIsOpen queries MariaDB for an open transaction. An unreadable answer counts as none:
// there are no more writes in the session then.
func txIsOpen(ctx context.Context, conn driver.Conn) (open bool, err error) {
	value, err := sysvar(ctx, conn, "in_transaction")
	return value == "1", err
}

func isUnknownVariable(err error) bool { return hasNumber(err, 1193) } // ER_UNKNOWN_SYSTEM_VARIABLE

// afterImplicitCommit returns whether a statement with an implicit commit made it before
// err. MariaDB can be queried. For MySQL the errors from parsing, and about a transaction's
// characteristics, are known to come before.
func afterImplicitCommit(ctx context.Context, conn driver.Conn, err error) dialect.TxState {
	open, qerr := txIsOpen(ctx, conn)
	if open {
		return dialect.StillOpen
	}
	server := serverError(err)
	if server == nil {
		return dialect.InDoubt
	}
	if qerr != nil {
		if hasNumber(server,
			1047, // ER_UNKNOWN_COM_ERROR: Galera, the node is not ready
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
			1792, // ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
		) {
			return dialect.StillOpen
		}
		if !isUnknownVariable(qerr) {
			return dialect.InDoubt
		}
	}
	// The implicit COMMIT itself may have failed (Galera's certification).
	if whole, _ := takes(ctx, conn, server); whole || hasNumber(server, 1020, 1180, 1181, 1317, 1969) {
		return dialect.InDoubt
	}
	return dialect.Committed
}

// sysvar reads a system variable by VALUES, which keeps the session's information about the
// application's last statement: a SELECT would change FOUND_ROWS(). MySQL, and MariaDB
// before 10.3, have no such VALUES.
func sysvar(ctx context.Context, conn driver.Conn, name string) (string, error) {
	// The caller's context may have ended the statement.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	value, err := attempt.Setting(ctx, conn, "VALUES (@@"+name+")")
	if hasNumber(err, 1064) { // ER_PARSE_ERROR
		return attempt.Setting(ctx, conn, "SELECT @@"+name)
	}
	return value, err
}
