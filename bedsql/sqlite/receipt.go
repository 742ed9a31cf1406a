package sqlite

import (
	"errors"
	"strings"

	"modernc.org/sqlite"
)

// isReceiptDuplicate reports whether err is of the receipts' key. SQLite names
// no constraint but its columns: "UNIQUE constraint failed: bed_receipt.id (1555)".
func isReceiptDuplicate(err error, _ string) bool {
	const (
		primaryKey = 1555 // SQLITE_CONSTRAINT_PRIMARYKEY
		unique     = 2067 // SQLITE_CONSTRAINT_UNIQUE, of tables as they were made before
	)
	var server *sqlite.Error
	if !errors.As(err, &server) || server.Code() != primaryKey && server.Code() != unique {
		return false
	}
	_, columns, ok := strings.Cut(server.Error(), "UNIQUE constraint failed: ")
	columns, _, _ = strings.Cut(columns, " (")
	return ok && columns == "bed_receipt.id"
}
