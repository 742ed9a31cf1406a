// Package logrow names the rows of the log's table bed_log.
package logrow

import (
	"crypto/sha256"
	"encoding/hex"
)

// Identity is the row with the log's identity.
const Identity = "identity"

// ReceiptSchema is the row with the schema of a data source's receipts. A data
// source's name is longer than a row's may be.
func ReceiptSchema(dataSource string) string {
	h := sha256.Sum256([]byte(dataSource))
	return "receipts-" + hex.EncodeToString(h[:])[:31]
}
