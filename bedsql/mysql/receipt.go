package mysql

import (
	"errors"
	"strings"

	"github.com/go-sql-driver/mysql"
)

const (
	// receiptKey is the name of the unique key of bed_receipt.
	receiptKey = "bed_receipt_id"
	// receiptStart begins the statement that writes a receipt.
	receiptStart = "INSERT INTO bed_receipt "
	// receiptWait begins the message of an error met by that statement in a
	// compound, where no message of the server's begins.
	receiptWait = "bed_receipt: "
)

// spreadReceipt puts two digits of chance in front of a unit's id. InnoDB keeps
// rows in the order of their key, and those who write side by side at its end
// wait for each other's latch: 64 writers spend half as much again on it.
func spreadReceipt(unitID string) string {
	const from, digits = 24, 2 // of the last group, which is random but for its end
	if len(unitID) < from+digits {
		return unitID
	}
	return unitID[from:from+digits] + "-" + unitID
}

func isReceipt(text string) bool { return strings.HasPrefix(text, receiptStart) }

// isReceiptDuplicate reports whether err is of the receipts' unique key. The
// message names the key last, between quotes, in every language that the server
// can be set to; the value that comes before it may hold any text. MySQL 8
// writes the table's name before the key's.
func isReceiptDuplicate(err error) bool {
	var server *mysql.MySQLError
	if !errors.As(err, &server) {
		return false
	}
	switch server.Number {
	case 1062, // ER_DUP_ENTRY
		1586: // ER_DUP_ENTRY_WITH_KEY_NAME
	default:
		return false
	}
	if strings.HasPrefix(server.Message, "Duplicate entry ") {
		return strings.HasSuffix(server.Message, " for key '"+receiptKey+"'") ||
			strings.HasSuffix(server.Message, " for key 'bed_receipt."+receiptKey+"'")
	}
	text, _, ok := cutLast(server.Message, "'")
	if !ok {
		return false
	}
	_, key, _ := cutLast(text, "'")
	return key == receiptKey || key == "bed_receipt."+receiptKey
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", s, false
	}
	return s[:i], s[i+len(sep):], true
}

// isReceiptBusy reports whether err was marked in the compound that wrote a
// receipt: see receiptGuard.
func isReceiptBusy(err error) bool {
	var server *mysql.MySQLError
	if !errors.As(err, &server) || !strings.HasPrefix(server.Message, receiptWait) {
		return false
	}
	switch server.Number {
	case 1205, 1213, 1020:
		return true
	}
	return false
}
