package postgres

import (
	"errors"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	receiptTable = "bed_receipt"
	receiptKey   = "bed_receipt_id" // its primary key
)

// isReceiptDuplicate reports whether err comes from the receipts' key.
func isReceiptDuplicate(err error, _ string) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == "23505" &&
		server.ConstraintName == receiptKey && server.TableName == receiptTable
}

// receiptWait is an error of waiting for another writer of the same receipt.
type receiptWait struct{ err *pgconn.PgError }

func (e *receiptWait) Error() string { return e.err.Error() }
func (e *receiptWait) Unwrap() error { return e.err }

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
		return &receiptWait{server}
	}
	return err
}

func isReceiptBusy(err error) bool {
	var wait *receiptWait
	return errors.As(err, &wait)
}
