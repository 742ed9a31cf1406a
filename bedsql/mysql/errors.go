package mysql

import (
	"database/sql/driver"
	_ "embed" // errors.txt
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/go-sql-driver/mysql"
)

// classify says what an error of the driver means for a write. The error is
// either of a statement handed to a live connection or of a dial.
func classify(err error) delivery.Class {
	if class, ok := delivery.CertainClass(err); ok {
		return class
	}
	var server *mysql.MySQLError
	if errors.As(err, &server) {
		return codes.Class(names(server)...)
	}
	for _, e := range driverErrors {
		if errors.Is(err, e.err) {
			return e.class
		}
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return delivery.Unreachable
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return delivery.Unreachable
	}
	if dialects.BeginsWith(err, argumentErrors) {
		return delivery.Refused
	}
	// mysql.ErrInvalidConn, io.EOF, a timeout, the context's end, a malformed
	// packet: the statement may have arrived.
	return delivery.Unknown
}

// driverErrors are the driver's own errors that are known to come before the
// statement is sent.
var driverErrors = []struct {
	err   error
	class delivery.Class
}{
	{driver.ErrBadConn, delivery.Unreachable}, // promised: nothing was sent
	{mysql.ErrBusyBuffer, delivery.Unreachable},
	{mysql.ErrPktTooLarge, delivery.Refused}, // checked before the first byte
	// With this configuration the handshake cannot succeed.
	{mysql.ErrNoTLS, delivery.Refused},
	{mysql.ErrCleartextPassword, delivery.Refused},
	{mysql.ErrNativePassword, delivery.Refused},
	{mysql.ErrOldPassword, delivery.Refused},
	{mysql.ErrUnknownPlugin, delivery.Refused},
	{mysql.ErrOldProtocol, delivery.Refused},
}

// argumentErrors are the beginnings of the errors that the driver (or
// database/sql) makes of arguments that do not fit. They have no type or value of
// their own.
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
	var number *strconv.NumError
	return errors.As(err, &number) || dialects.BeginsWith(err, decodeErrors)
}

// decodeErrors are the beginnings of the errors that the driver makes of a value
// in a row.
var decodeErrors = []string{
	"bad value for field: ", "invalid time bytes: ", "not [0-9]", "illegal ", "invalid DATETIME packet length ",
	"invalid TIME packet length ", "unknown field type ",
}

//go:embed errors.txt
var codeList string

// codes are the server's error numbers and the classes of its SQLSTATEs.
var codes = dialects.ReadCodes(codeList)

// names are those by which the list may know an error, the narrowest first.
func names(server *mysql.MySQLError) []string {
	return []string{fmt.Sprintf("%04d", server.Number), string(server.SQLState[:2])}
}

func isMistake(err error) bool {
	var server *mysql.MySQLError
	return errors.As(err, &server) && codes.Mistake(names(server)...)
}

// hasNumber reports whether err is the server's answer with one of these numbers.
func hasNumber(err error, numbers ...uint16) bool {
	var server *mysql.MySQLError
	return errors.As(err, &server) && slices.Contains(numbers, server.Number)
}
