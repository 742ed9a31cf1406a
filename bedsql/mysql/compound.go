package mysql

import (
	"database/sql/driver"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
)

// The limits of one compound statement. Beyond them the server's parse time outweighs the
// saved round trips.
const (
	maxCompoundCalls  = 64
	maxCompoundText   = 256 << 10
	maxCompoundParams = 60000 // the protocol ends at 65535
)

// A variable of a compound hides columns of the same name from the statements in it. These
// names are longer than any column's name.
const longerThanAColumn = "_of_the_call_this_name_is_longer_than_that_of_any_column_may_ever_be"

func rowsVariable(i int) string { return "bed_rows_" + strconv.Itoa(i) + longerThanAColumn }
func idVariable(i int) string   { return "bed_id_" + strconv.Itoa(i) + longerThanAColumn }

const (
	messageVariable = "bed_message" + longerThanAColumn
	priorVariable   = "bed_prior_id" + longerThanAColumn
)

const (
	// completion_type may be set to CHAIN or RELEASE, so the texts rule them out.
	start  = "BEGIN\nDECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;\nSTART TRANSACTION;\n"
	commit = "COMMIT AND NO CHAIN NO RELEASE;\n"
	// receiptGuard marks an error of waiting for another writer of the same receipt, so that it
	// is distinguishable from one of the application's statements.
	receiptGuard = "BEGIN DECLARE EXIT HANDLER FOR 1205, 1213, 1020 RESIGNAL SET MESSAGE_TEXT = '" + receiptWait + "waiting for another writer of this receipt failed; try again';\n"
	// ifOpen stops a compound outside of a transaction: the server may already have rolled back.
	ifOpen = "IF @@in_transaction = 0 THEN SIGNAL SQLSTATE '25000' SET MESSAGE_TEXT = 'bed: nothing was committed: the transaction is not open any more'; END IF;\n"
)

// compound is the text of a compound statement, with its parameters.
type compound struct {
	text strings.Builder
	args []driver.NamedValue
	// inline is set if receipts are the only calls with arguments: with these in the text,
	// nothing need be prepared.
	inline bool
}

func newCompound(calls []dialect.Call) *compound {
	return &compound{inline: !slices.ContainsFunc(calls, func(c dialect.Call) bool { return len(c.Args) > 0 && !attempt.IsReceipt(c.SQL) })}
}

// atomic runs calls as one transaction and returns one row. It holds the affected rows of
// each call but receipts, and the generated id of each INSERT. Both lists of names are in
// the order of the calls. A handler rolls everything back and passes the error on unchanged, but no
// handler sees the error of the COMMIT: it leaves the compound like the answer to a separate COMMIT.
func (c *compound) atomic(calls []dialect.Call, writes []*write) *compound {
	var selected []string
	ids, required := false, slices.ContainsFunc(calls, func(c dialect.Call) bool { return c.Required.Given() })
	c.add("BEGIN NOT ATOMIC\n")
	if required {
		c.add("DECLARE ", messageVariable, " VARCHAR(128) CHARACTER SET ascii;\n")
	}
	for i, w := range writes {
		if attempt.IsReceipt(calls[i].SQL) {
			continue
		}
		c.add("DECLARE ", rowsVariable(i), " BIGINT DEFAULT 0;\n")
		selected = append(selected, rowsVariable(i))
		if w.generates() {
			c.add("DECLARE ", idVariable(i), " BIGINT UNSIGNED DEFAULT 0;\n")
			selected, ids = append(selected, idVariable(i)), true
		}
	}
	if ids {
		c.add("DECLARE ", priorVariable, " BIGINT UNSIGNED DEFAULT LAST_INSERT_ID();\n")
	}
	c.add(start)
	for i, w := range writes {
		c.call(calls[i], w)
		switch {
		case attempt.IsReceipt(calls[i].SQL):
		case w.generates():
			// The session keeps its LAST_INSERT_ID(), which a trigger or a function may read. It is
			// unchanged without a generated id, or if the same id is generated as before.
			generated := ""
			if w.auto {
				generated = rowsVariable(i) + " = 0 AND "
			}
			c.add("SET ", rowsVariable(i), " = ROW_COUNT(), ", idVariable(i), " = LAST_INSERT_ID();\n")
			c.add("IF ", generated, idVariable(i), " = ", priorVariable, " THEN SET ", idVariable(i), " = 0; ELSE SET ", priorVariable, " = ", idVariable(i), "; END IF;\n")
		default:
			c.add("SET ", rowsVariable(i), " = ROW_COUNT();\n")
		}
		c.require(calls[i].Required, i)
	}
	c.add("END;\n", commit)
	if len(selected) == 0 {
		selected = []string{"0"}
	}
	c.add("SELECT ", strings.Join(selected, ", "), ";\nEND")
	return c
}

// require stops after call i if it misses its required number of changed rows: see
// rowsError.
func (c *compound) require(r entry.Requirement, i int) {
	if !r.Given() {
		return
	}
	n, more := r.Rows()
	unless := " <> "
	if more {
		unless = " < "
	}
	c.add("IF ", rowsVariable(i), unless, strconv.FormatInt(n, 10), " THEN SET ", messageVariable, " = CONCAT('", rowsStop, strconv.Itoa(i), " ', ", rowsVariable(i), ");\n",
		"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = ", messageVariable, "; END IF;\n")
}

// rowsStop begins the message of a compound about a call with the wrong number of changed
// rows. The call's index and its number of changed rows follow.
const rowsStop = "bed_rows: call "

// rowsError returns the error for such a message.
func rowsError(calls []dialect.Call, err *mysql.MySQLError) error {
	var i int
	var got int64
	if text, ours := strings.CutPrefix(err.Message, rowsStop); !ours || err.Number != numSignal {
		return nil
	} else if n, _ := fmt.Sscanf(text, "%d %d", &i, &got); n != 2 || i < 0 || i >= len(calls) || !calls[i].Required.Given() {
		return nil
	}
	return dialect.Unmet(calls[i].Required, got)
}

const numSignal = 1644 // ER_SIGNAL_EXCEPTION

// plain is atomic without the row, which costs a tenth of a write. The affected rows of a compound
// are the sum over its statements.
func (c *compound) plain(calls []dialect.Call, writes []*write) *compound {
	c.add("BEGIN NOT ATOMIC\n", start)
	for i, w := range writes {
		c.call(calls[i], w)
	}
	c.add("END;\n", commit, "END")
	return c
}

// inTransaction runs calls in the open transaction and commits it. It returns no row. It needs no
// handler, whose parsing would cost as much as a call: an error before the COMMIT leaves the
// transaction open.
func (c *compound) inTransaction(calls []dialect.Call, writes []*write) *compound {
	c.add("BEGIN NOT ATOMIC\n", ifOpen)
	stop := func(i, got int) {
		c.add(" THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '", rowsStop, strconv.Itoa(i), " ", strconv.Itoa(got), "'; END IF;\n")
	}
	for i, w := range writes {
		if calls[i].Check != "" {
			c.add("IF NOT EXISTS (", calls[i].Check, ")")
			stop(i, 0)
		}
		c.call(calls[i], w)
		if r := calls[i].Required; r.Given() {
			n, _ := r.Rows()
			c.add("IF ROW_COUNT() <> ", strconv.FormatInt(n, 10))
			stop(i, -1)
		}
	}
	c.add(commit, "END")
	return c
}

func (c *compound) add(parts ...string) {
	for _, p := range parts {
		c.text.WriteString(p)
	}
}

// call adds a statement. The newline ends a comment at its end.
func (c *compound) call(call dialect.Call, w *write) {
	receipt := attempt.IsReceipt(call.SQL)
	if receipt {
		c.add(receiptGuard)
		if text, ok := inlined(w.text, call.Args); ok && c.inline {
			c.add(text, "\n;\nEND;\n")
			return
		}
	}
	c.add(w.text, "\n;\n")
	for _, a := range call.Args {
		a.Ordinal = len(c.args) + 1
		c.args = append(c.args, a)
	}
	if receipt {
		c.add("END;\n")
	}
}

// inlined writes a receipt's values into its text. They are numbers, ids and hashes; it
// leaves any other value to the driver.
func inlined(text string, args []driver.NamedValue) (string, bool) {
	var b strings.Builder
	for _, a := range args {
		before, after, found := strings.Cut(text, "?")
		if !found {
			return "", false
		}
		b.WriteString(before)
		switch v := a.Value.(type) {
		case nil:
			b.WriteString("NULL")
		case int64:
			b.WriteString(strconv.FormatInt(v, 10))
		case string:
			if !plainText(v) {
				return "", false
			}
			b.WriteString("'" + v + "'")
		default:
			return "", false
		}
		text = after
	}
	b.WriteString(text)
	return b.String(), !strings.Contains(text, "?")
}

func plainText(s string) bool {
	for i := range len(s) {
		c := s[i]
		if ('a' > c|0x20 || c|0x20 > 'z') && ('0' > c || c > '9') && c != '-' && c != '_' && c != ':' && c != '.' {
			return false
		}
	}
	return true
}
