package mysql

import (
	"context"
	"database/sql/driver"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
)

// Limits for the prepared statements of one connection.
const (
	// maxPrepared is the number of texts with prepared statements, two for each text. It stays
	// within the server's max_prepared_stmt_count (16382) for about a hundred connections.
	maxPrepared = 16
	// maxNoticed is the maximum number of counted texts that are not prepared yet.
	maxNoticed = 64
	// maxNoticedText is the maximum length of such a text.
	maxNoticedText = 8 << 10
	// defaultPrepareFrom is the number of uses from which a text is prepared; a text of one use
	// is not worth it.
	defaultPrepareFrom = 3
)

const (
	numTooManyPrepared = 1461 // ER_MAX_PREPARED_STMT_COUNT_REACHED
	numUnknownPrepared = 1243 // ER_UNKNOWN_STMT_HANDLER
	numPrepareAgain    = 1615 // ER_NEED_REPREPARE
	numWrongArguments  = 1210 // ER_WRONG_ARGUMENTS, of EXECUTE
)

// memory belongs to one connection. It holds the texts that ran there with a receipt, and
// the compounds prepared for them. The server takes as long to read a compound as to run it.
//
// A compound executes its write by name, as a statement prepared separately. The server
// prepares such a statement anew after a change of its table or view, but not the text of a
// compound: a write to a replaced view would go on to the tables of the old view.
type memory struct {
	conn  driver.Conn
	texts map[string]*noticed
	// prepared counts the texts with open statements, named all names.
	prepared, named int
}

// noticed is a text that ran with a receipt.
type noticed struct {
	count int
	// never is set if it cannot be prepared.
	never bool
	// writes are the statements of the compound, name is the prepared write's, stmt the compound; row
	// is set if stmt returns a row.
	writes []*write
	name   string
	stmt   driver.Stmt
	row    bool
}

// noticedAs returns the key of calls in memory.texts. No text contains a NUL, see readWrite.
func noticedAs(calls []dialect.Call) string {
	write := calls[len(calls)-1]
	if !write.Required.Given() && len(calls) == 2 {
		return write.SQL
	}
	return strconv.Itoa(len(calls)) + write.Required.Sign() + "\x00" + write.SQL
}

// notice counts a use of the text.
func (m *memory) notice(text string) *noticed {
	n := m.texts[text]
	if n == nil {
		if len(m.texts) >= maxNoticed {
			delete(m.texts, m.any(false))
		}
		n = &noticed{}
		m.texts[text] = n
	}
	n.count++
	return n
}

// any returns one of the texts that are prepared, or not.
func (m *memory) any(prepared bool) string {
	for text, n := range m.texts {
		if (n.stmt != nil) == prepared {
			return text
		}
	}
	return ""
}

func (m *memory) unprepare(n *noticed) {
	if n.stmt != nil {
		_ = n.stmt.Close()
		n.stmt = nil
		m.prepared--
		m.deallocate(n.name)
	}
}

// deallocate frees a prepared statement, which ends with the connection at the latest.
func (m *memory) deallocate(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	_, _, _ = attempt.Exec(ctx, m.conn, "DEALLOCATE PREPARE "+name, nil)
}

// prepareNamed prepares a write separately and returns the statement that executes it. Its
// text has no backslash, see readWrite.
func (m *memory) prepareNamed(ctx context.Context, w *write) (name string, execute *write, err error) {
	m.named++
	name = "bed_write_" + strconv.Itoa(m.named)
	if _, _, err := attempt.Exec(ctx, m.conn, "PREPARE "+name+" FROM '"+strings.ReplaceAll(w.text, "'", "''")+"'", nil); err != nil {
		return "", nil, err
	}
	by := *w
	by.text = "EXECUTE " + name
	if w.params > 0 {
		by.text += " USING " + strings.Repeat("?, ", w.params-1) + "?"
	}
	return name, &by, nil
}

// release closes all statements.
func (m *memory) release() {
	for _, n := range m.texts {
		m.unprepare(n)
	}
}

// prepared runs one write, with any receipt before it, as a compound that is prepared on the
// connection. Without such a compound ready is false. conn may be any connection.
func (c *compounds) prepared(ctx context.Context, conn driver.Conn, calls []dialect.Call) (results []driver.Result, ready bool, err error) {
	s, ok := conn.(*attempt.Session)
	if !ok || !c.known.Load() || slices.ContainsFunc(calls[:len(calls)-1], func(c dialect.Call) bool { return !attempt.IsReceipt(c.SQL) }) {
		return nil, false, nil
	}
	write := calls[len(calls)-1]
	if len(write.SQL) > maxNoticedText || !write.Prepared && !c.bindable(write.Args) {
		return nil, false, nil
	}
	m, ok := s.Memory.(*memory)
	if !ok {
		m = &memory{conn: s.Conn, texts: map[string]*noticed{}}
		s.Memory = m
	}
	if c.full.Load() > time.Now().UnixNano() {
		m.release()
		return nil, false, nil
	}
	n := m.notice(noticedAs(calls))
	if n.never || n.stmt == nil && (n.count < c.prepareFrom || !c.ready(ctx, s, m, n, calls)) {
		return nil, false, nil
	}
	if w := n.writes[len(calls)-1]; w.generates() && !c.idIsKnown(ctx, conn, w) {
		return nil, false, nil
	}
	args := joinArgs(calls)
	if n.stmt.NumInput() != len(args) || ctx.Err() != nil {
		return nil, false, nil //nolint:nilerr // the error comes where the calls are sent as they are
	}
	r, err := attempt.SendStmt(ctx, n.stmt, args, n.row)
	switch {
	case err != nil:
	case n.row:
		results, err = compoundRow(calls, n.writes, r.Rows)
	default:
		results, err = withReceipt(r.Result)
	}
	if err == nil {
		return results, true, nil
	}
	failed := leaveNoneOpen(ctx, s.Conn, calls, err, false)
	gone := notRun(err) || hasNumber(err, numUnknownPrepared, numPrepareAgain, numWrongArguments)
	if gone || serverError(err) == nil {
		m.unprepare(n)
	}
	if gone {
		return nil, false, nil // it no longer exists as it was
	}
	return nil, true, failed
}

// ready prepares the compound for a text. If that fails, the text is sent unprepared.
func (c *compounds) ready(ctx context.Context, s *attempt.Session, m *memory, n *noticed, calls []dialect.Call) bool {
	writes, ok := c.prepare(calls)
	at := len(calls) - 1
	if !ok || !writes[at].repeatable {
		n.never = true
		return false
	}
	if writes[at].generates() && !c.idIsKnown(ctx, s.Conn, writes[at]) {
		return false
	}
	if m.prepared >= maxPrepared {
		m.unprepare(m.texts[m.any(true)])
	}
	name, execute, err := m.prepareNamed(ctx, writes[at])
	if err != nil {
		c.unprepared(m, n, err)
		return false
	}
	writes[at] = execute
	n.writes, n.name = writes, name
	text := new(compound).plain(calls, writes).text.String()
	// The number of changed rows in bed_order varies.
	if n.row = execute.generates() || calls[at].Required.Given() || len(calls) > 2; n.row {
		text = new(compound).atomic(calls, writes).text.String() // each argument is a parameter
	}
	if n.stmt, err = attempt.Prepare(ctx, s.Conn, text); err != nil {
		n.stmt = nil
		m.deallocate(name)
		c.unprepared(m, n, err)
		return false
	}
	m.prepared++
	return true
}

// unprepared handles an error of PREPARE. A readable text may be tried again later. At the
// server's limit, other connections may need the statements of this one.
func (c *compounds) unprepared(m *memory, n *noticed, err error) {
	n.count, n.never = 0, notRun(err)
	if hasNumber(err, numTooManyPrepared) {
		c.full.Store(time.Now().Add(tableMemory).UnixNano())
		m.release()
	}
}

// withReceipt returns the results of a receipt and a write from the sum of their rows.
func withReceipt(sum driver.Result) ([]driver.Result, error) {
	rows, err := sum.RowsAffected()
	if err != nil {
		return nil, inDoubt(err)
	}
	return []driver.Result{result{rows: 1}, result{rows: rows - 1}}, nil
}

// bindable reports whether values mean the same as parameters as in the driver's own place
// for them. With interpolateParams that is the text: there a number with a fraction is a
// DECIMAL and not a DOUBLE, an unsigned number is signed if it fits, and a []byte has an
// introducer.
func (c *compounds) bindable(args []driver.NamedValue) bool {
	differ := false
	for i := range args {
		switch v := args[i].Value.(type) {
		case nil, bool, string, time.Time:
		case int64:
			differ = differ || v == math.MinInt64
		case uint64, float64, []byte:
			differ = true
		default:
			return false
		}
	}
	return !differ || c.binds
}

func joinArgs(calls []dialect.Call) []driver.NamedValue {
	var args []driver.NamedValue
	for _, c := range calls {
		args = append(args, c.Args...)
	}
	for i := range args {
		args[i].Ordinal = i + 1
	}
	return args
}
