package mysql

import (
	"slices"
	"strings"
)

// receiptWait begins the message of an error from the receipt's statement in a compound. The
// server's own messages never begin with it.
const receiptWait = "bed_receipt: "

// receiptKeys are the possible names of bed_receipt's key in an error about a duplicate. The
// last two belong to tables made without a primary key.
var receiptKeys = []string{"bed_receipt.PRIMARY", "bed_receipt_id", "bed_receipt.bed_receipt_id"}

// spreadReceipt puts two random digits in front of a unit's id. InnoDB keeps rows in the
// order of their key, and concurrent inserts at its end wait for each other's latch: with 64
// writers a write takes half as long again.
func spreadReceipt(unitID string) string {
	const from, digits = 24, 2 // of the last group, which is random but for its end
	if len(unitID) < from+digits {
		return unitID
	}
	return unitID[from:from+digits] + "-" + unitID
}

// isReceiptDuplicate reports whether err comes from the receipt id. The message names the
// key last, between quotes, in every language of the server; the value before it may hold
// any text. MySQL puts the table's name before the key's. MariaDB does not, and calls every
// primary key PRIMARY: there the unique value decides.
func isReceiptDuplicate(err error, id string) bool {
	server := serverError(err)
	if !hasNumber(err, 1062, 1586) { // ER_DUP_ENTRY, ER_DUP_ENTRY_WITH_KEY_NAME
		return false
	}
	text, english := strings.CutPrefix(server.Message, "Duplicate entry ")
	if english {
		value, primary := strings.CutSuffix(text, "' for key 'PRIMARY'")
		return primary && isValue(strings.TrimPrefix(value, "'"), id) ||
			slices.ContainsFunc(receiptKeys, func(key string) bool { return strings.HasSuffix(text, " for key '"+key+"'") })
	}
	text, _ = cutLast(text, "'")
	text, key := cutLast(text, "'")
	_, value, _ := strings.Cut(text, "'")
	value, _, _ = strings.Cut(value, "'")
	return key == "PRIMARY" && isValue(value, id) || slices.Contains(receiptKeys, key)
}

// isValue reports whether a message that quotes value means id. MariaDB cuts values after 61
// characters and adds dots, TiDB after 64 without a sign: by then the random digits have
// told two ids apart.
func isValue(value, id string) bool {
	begin, cut := strings.CutSuffix(value, "...")
	return value == id || (cut && len(begin) >= 40 || len(begin) >= 60) && strings.HasPrefix(id, begin)
}

func cutLast(s, sep string) (before, after string) {
	i := strings.LastIndex(s, sep)
	return s[:max(i, 0)], s[i+1:]
}

// isReceiptBusy reports whether err was marked in the compound of a receipt: see
// receiptGuard.
func isReceiptBusy(err error) bool {
	return hasNumber(err, 1205, 1213, 1020) && strings.HasPrefix(serverError(err).Message, receiptWait)
}
