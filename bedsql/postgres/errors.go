package postgres

import (
	"cmp"
	"context"
	"database/sql/driver"
	_ "embed" // errors.txt
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
)

// classify returns the class of a driver's error for a write. The error comes from a
// statement on a live connection or from a dial.
func classify(err error) dialect.Class {
	if class, ok := dialect.CertainClass(err); ok {
		return class
	}
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, pgconn.ErrConnClosed) {
		// Neither is a reliable promise. When a connection breaks under a statement without
		// arguments (also COMMIT), pgx drops the error of the read, then meets its own closed
		// connection and calls that safe to retry, although the server may have carried the
		// statement out.
		return dialect.Unknown
	}
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		// This is the server's answer although it has no SQLSTATE: a COMMIT of an aborted
		// transaction rolls back.
		return dialect.Retryable
	}
	var dial *pgconn.ConnectError
	if errors.As(err, &dial) {
		return classifyDial(dial)
	}
	if server := serverError(err); server != nil {
		class := classifyServer(server)
		if class == dialect.Unknown && errors.As(err, new(*pgconn.PrepareError)) {
			return dialect.Retryable // only prepared: there is nothing to be in doubt about
		}
		return class
	}
	switch {
	case pgconn.SafeToRetry(err), strings.HasPrefix(err.Error(), "failed to deallocate "):
		return dialect.Unreachable
	case dialects.BeginsWith(err, argumentErrors):
		return dialect.Refused
	}
	// A broken connection, a timeout, the context's end: the statement may have arrived.
	return dialect.Unknown
}

// classifyDial classifies a failed dial. Of several hosts only some may have answered; the
// result is Refused only if all hosts refused.
func classifyDial(dial *pgconn.ConnectError) dialect.Class {
	class, refused, hosts := dialect.Unreachable, 0, leaves(dial.Unwrap())
	for _, err := range hosts {
		server := serverError(err)
		switch {
		case server == nil:
			continue
		case hasCode(server, "28P01", "3D000", "42501"): // pgx tries no further host
			return dialect.Refused
		case meaning(server).Class == dialect.Refused: // nothing was sent, whoever answers
			refused++
		}
		class = dialect.Retryable
	}
	if refused > 0 && refused == len(hosts) {
		return dialect.Refused
	}
	return class
}

func leaves(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// argumentErrors are the beginnings of pgx's (or database/sql's) errors about unsuitable
// arguments. These errors have no type or value of their own.
var argumentErrors = []string{
	"failed to encode args[", "mismatched param and argument count", "unable to encode ", "expected ",
	"rewrite query failed: ", "unknown QueryExecMode: ", "cannot use QueryExecModeCache", "extended protocol limited to ",
	"insufficient arguments", "unused argument: ", "first sql argument must be > 0", "invalid arg type: ",
	"simple protocol queries must be run with ", "unsupported isolation: ", "sql: expected ", "sql: converting argument ",
}

// undecoded implements Dialect.Undecoded: pgx reads some formats only as in its own sessions
// (a datestyle, bytea_output).
func undecoded(err error) bool { return strings.HasPrefix(err.Error(), "convert field ") }

// classifyServer returns the class of a server's answer.
func classifyServer(server *pgconn.PgError) dialect.Class {
	switch fatal := endsSession(server); {
	case fatal && server.Routine == "":
		// The server names the routine that failed. This is a pooler, without knowledge of the
		// fate of its traffic ("server conn crashed?").
		return dialect.Unknown
	case server.Code == "08P01" && !fatal:
		// protocol_violation as a plain ERROR: the parameters do not fit the statement, and the
		// session goes on.
		return dialect.Refused
	case server.Code == "0A000" && server.Routine == "RevalidateCachedQuery":
		// "cached plan must not change result type": prepared anew, it runs.
		return dialect.Retryable
	}
	return meaning(server).Class
}

// serverError returns the server's answer in err; nil without one.
func serverError(err error) (server *pgconn.PgError) {
	errors.As(err, &server)
	return server
}

// hasCode reports whether err is the server's answer with one of these SQLSTATEs.
func hasCode(err error, codes ...string) bool {
	server := serverError(err)
	return server != nil && slices.Contains(codes, server.Code)
}

// meaning looks up the server's SQLSTATE, then its class.
func meaning(server *pgconn.PgError) dialects.Meaning {
	return codes.Of(server.Code, server.Code[:min(2, len(server.Code))])
}

func isMistake(err error) bool {
	server := serverError(err)
	return server != nil && meaning(server).Mistake &&
		server.Routine != "ExecWithCheckOptions" // a row that a policy does not let in
}

// endsSession reports whether an error ends the session. Poolers omit the untranslated
// severity (PgBouncer 1.18).
func endsSession(server *pgconn.PgError) bool {
	severity := cmp.Or(server.SeverityUnlocalized, server.Severity)
	return severity != "" && severity != "ERROR"
}

//go:embed errors.txt
var codeList string

// codes holds SQLSTATEs and the first two characters of SQLSTATEs.
var codes = dialects.ReadCodes(codeList)

// isReceiptDuplicate reports whether err comes from the receipts' primary key.
func isReceiptDuplicate(err error, _ string) bool {
	server := serverError(err)
	return server != nil && server.Code == "23505" &&
		server.ConstraintName == "bed_receipt_id" && server.TableName == "bed_receipt"
}

// receiptWait is an error of waiting for another writer of the same receipt.
type receiptWait struct{ *pgconn.PgError }

func (e receiptWait) Unwrap() error { return e.PgError }

// receiptError marks err if it answers the call that writes a receipt.
func receiptError(calls []dialect.Call, failed int, err error) error {
	server, ok := err.(*pgconn.PgError) //nolint:errorlint // not a marked one
	if !ok || failed < 0 || failed >= len(calls) || !attempt.IsReceipt(calls[failed].SQL) {
		return err
	}
	if hasCode(server,
		"40001",   // serialization_failure
		"40P01",   // deadlock_detected
		"55P03") { // lock_not_available
		return receiptWait{server}
	}
	return err
}

func isReceiptBusy(err error) bool { return errors.As(err, new(receiptWait)) }

// writable reads the mode of a new transaction: it is read-only on a standby, and with
// default_transaction_read_only on.
func writable(ctx context.Context, conn driver.Conn) error {
	std := stdlibConn(conn)
	if std == nil {
		return nil
	}
	results, err := std.Conn().PgConn().Exec(ctx, "SHOW transaction_read_only").ReadAll()
	switch {
	case err != nil && classify(err) == dialect.Refused:
		return nil // not quite PostgreSQL
	case err != nil:
		return err
	case len(results) == 1 && len(results[0].Rows) == 1 && string(results[0].Rows[0][0]) == "on":
		return errors.New("it takes no writes: transaction_read_only is on (a standby, or default_transaction_read_only)")
	}
	return nil
}

// isReadOnly reports whether err means that this server or session is read-only.
func isReadOnly(err error) bool {
	server := serverError(err)
	return server != nil && meaning(server).Outage
}
