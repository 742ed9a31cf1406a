package mysql

import (
	"errors"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
)

const (
	// receiptStart begins the statement that writes a receipt.
	receiptStart = "INSERT INTO bed_receipt "
	// receiptWait begins the message of an error met by that statement in a
	// compound, where no message of the server's begins.
	receiptWait = "bed_receipt: "
)

// receiptKeys are the names of the key of bed_receipt that say whose it is. The
// last two are those of tables that were made without a primary key.
var receiptKeys = []string{"bed_receipt.PRIMARY", "bed_receipt_id", "bed_receipt.bed_receipt_id"}

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

// isReceiptDuplicate reports whether err is of the receipt id. The message names
// the key last, between quotes, in every language that the server can be set to;
// the value that comes before it may hold any text. MySQL writes the table's
// name before the key's. MariaDB does not, and calls every primary key PRIMARY:
// there the value tells, which nobody else has.
func isReceiptDuplicate(err error, id string) bool {
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
	text, english := strings.CutPrefix(server.Message, "Duplicate entry ")
	if english {
		value, primary := strings.CutSuffix(text, "' for key 'PRIMARY'")
		return primary && isValue(strings.TrimPrefix(value, "'"), id) ||
			slices.ContainsFunc(receiptKeys, func(key string) bool { return strings.HasSuffix(text, " for key '"+key+"'") })
	}
	text, _, _ = cutLast(text, "'")
	text, key, _ := cutLast(text, "'")
	_, value, _ := strings.Cut(text, "'")
	value, _, _ = strings.Cut(value, "'")
	return key == "PRIMARY" && isValue(value, id) || slices.Contains(receiptKeys, key)
}

// isValue reports whether a message that quotes value means id. MariaDB cuts
// values off behind 61 characters and says so by dots, TiDB behind 64 and does not:
// chance has told them apart long before.
func isValue(value, id string) bool {
	begin, cut := strings.CutSuffix(value, "...")
	return value == id || (cut && len(begin) >= 40 || len(begin) >= 60) && strings.HasPrefix(id, begin)
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
