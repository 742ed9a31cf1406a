package mysql

import (
	"context"
	"database/sql/driver"
	_ "embed" // errors.txt
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/go-sql-driver/mysql"
)

// classify returns the class of a driver's error for a write. The error comes from a
// statement on a live connection or from a dial.
func classify(err error) dialect.Class {
	if class, ok := dialect.CertainClass(err); ok {
		return class
	}
	if server := serverError(err); server != nil {
		return meaning(server).Class
	}
	for _, e := range driverErrors {
		if errors.Is(err, e.err) {
			return e.class
		}
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" || errors.As(err, new(*net.DNSError)) {
		return dialect.Unreachable
	}
	if dialects.BeginsWith(err, argumentErrors) {
		return dialect.Refused
	}
	// mysql.ErrInvalidConn, io.EOF, a timeout, the context's end, a malformed packet: the
	// statement may have arrived.
	return dialect.Unknown
}

// driverErrors are the driver's own errors from before the statement is sent.
var driverErrors = []struct {
	err   error
	class dialect.Class
}{
	{driver.ErrBadConn, dialect.Unreachable}, // promised: nothing was sent
	{mysql.ErrBusyBuffer, dialect.Unreachable},
	{mysql.ErrPktTooLarge, dialect.Refused}, // checked before the first byte
	// With this configuration the handshake cannot succeed.
	{mysql.ErrNoTLS, dialect.Refused},
	{mysql.ErrCleartextPassword, dialect.Refused},
	{mysql.ErrNativePassword, dialect.Refused},
	{mysql.ErrOldPassword, dialect.Refused},
	{mysql.ErrUnknownPlugin, dialect.Refused},
	{mysql.ErrOldProtocol, dialect.Refused},
}

// argumentErrors are the beginnings of the driver's (or database/sql's) errors about
// unsuitable arguments. These errors have no type or value of their own.
var argumentErrors = []string{
	"argument count mismatch (got: ",
	"cannot convert type: ",
	"year is not in the range [1, 9999]: ",
	"mysql: driver does not support the use of Named Parameters",
	"mysql: unsupported isolation level: ",
	"unsupported type ",
	"non-Value type ",
	"sql: expected ",
	"sql: converting argument ",
}

// undecoded implements Dialect.Undecoded.
func undecoded(err error) bool {
	return errors.As(err, new(*strconv.NumError)) || dialects.BeginsWith(err, decodeErrors)
}

// decodeErrors are the beginnings of the driver's errors about a value in a row.
var decodeErrors = []string{
	"bad value for field: ", "invalid time bytes: ", "not [0-9]", "illegal ", "invalid DATETIME packet length ",
	"invalid TIME packet length ", "unknown field type ",
}

//go:embed errors.txt
var codeList string

// codes holds the server's error numbers and the classes of its SQLSTATEs.
var codes = dialects.ReadCodes(codeList)

// meaning looks up the server's number, then the class of its SQLSTATE.
func meaning(server *mysql.MySQLError) dialects.Meaning {
	return codes.Of(fmt.Sprintf("%04d", server.Number), string(server.SQLState[:2]))
}

// serverError returns the server's answer in err; nil without one.
func serverError(err error) (server *mysql.MySQLError) {
	errors.As(err, &server)
	return server
}

func isMistake(err error) bool {
	server := serverError(err)
	return server != nil && meaning(server).Mistake
}

// hasNumber reports whether err is the server's answer with one of these numbers.
func hasNumber(err error, numbers ...uint16) bool {
	server := serverError(err)
	return server != nil && slices.Contains(numbers, server.Number)
}

// writable begins a transaction that announces writes. A server under read_only refuses it
// to the accounts without the right to write, and a Galera node outside the primary
// component refuses it to all. Both answer a ping. A server with a read-only InnoDB still
// accepts it.
func writable(ctx context.Context, conn driver.Conn) error {
	if _, _, err := attempt.Exec(ctx, conn, "START /* does it take writes? */ TRANSACTION READ WRITE", nil); err != nil {
		if classify(err) == dialect.Refused {
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
	server := serverError(err)
	if server == nil {
		return false
	}
	if server.Number == 1290 { // ER_OPTION_PREVENTS_STATEMENT names the option, untranslated
		return strings.Contains(strings.ReplaceAll(server.Message, "_", "-"), "read-only")
	}
	return meaning(server).Outage
}
