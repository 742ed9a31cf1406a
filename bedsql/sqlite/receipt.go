package sqlite

import (
	"errors"
	"strings"

	"modernc.org/sqlite"
)

// isReceiptDuplicate reports whether err is of the receipts' unique key. SQLite
// names no constraint but its columns: "UNIQUE constraint failed:
// bed_receipt.id (2067)".
func isReceiptDuplicate(err error) bool {
	const uniqueConstraint = 2067 // SQLITE_CONSTRAINT_UNIQUE
	var server *sqlite.Error
	if !errors.As(err, &server) || server.Code() != uniqueConstraint {
		return false
	}
	_, columns, ok := strings.Cut(server.Error(), "UNIQUE constraint failed: ")
	return ok && (columns == "bed_receipt.id" || columns == "bed_receipt.id (2067)")
}
