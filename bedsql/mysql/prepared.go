package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/go-sql-driver/mysql"
)

// Bounds of what is prepared on one connection.
const (
	// maxPrepared keeps far from the server's max_prepared_stmt_count (16382)
	// with some hundred connections.
	maxPrepared = 16
	// maxNoticed is how many texts are counted before they are prepared.
	maxNoticed = 64
	// maxNoticedText is the longest of them.
	maxNoticedText = 8 << 10
	// defaultPrepareFrom is at which use a text is prepared: one that does not
	// come again is not worth it.
	defaultPrepareFrom = 3
)

const (
	numTooManyPrepared = 1461 // ER_MAX_PREPARED_STMT_COUNT_REACHED
	numUnknownPrepared = 1243 // ER_UNKNOWN_STMT_HANDLER
	numPrepareAgain    = 1615 // ER_NEED_REPREPARE
)

// memory is what is kept with one connection: the texts that were run there
// with a receipt, and the compounds that were prepared for them. A compound
// takes the server as long to read as to run.
type memory struct {
	texts map[string]*noticed
	// uses counts all uses, prepared the statements that are open.
	uses, prepared int
}

// noticed is a text that was run with a receipt.
type noticed struct {
	count, last int
	// never: it cannot be prepared.
	never bool
	write *write
	stmt  driver.Stmt
}

func memoryOf(s *delivery.Session) *memory {
	m, ok := s.Memory.(*memory)
	if !ok {
		m = &memory{texts: map[string]*noticed{}}
		s.Memory = m
	}
	return m
}

// notice counts a use of the text.
func (m *memory) notice(text string) *noticed {
	m.uses++
	n := m.texts[text]
	if n == nil {
		if len(m.texts) >= maxNoticed {
			m.forget(m.oldest(func(*noticed) bool { return true }))
		}
		n = &noticed{}
		m.texts[text] = n
	}
	n.count++
	n.last = m.uses
	return n
}

// oldest is the text whose last use is the longest ago.
func (m *memory) oldest(of func(*noticed) bool) (text string) {
	last := m.uses + 1
	for t, n := range m.texts {
		if of(n) && n.last < last {
			text, last = t, n.last
		}
	}
	return text
}

func (m *memory) forget(text string) {
	if n := m.texts[text]; n != nil {
		m.unprepare(n)
		delete(m.texts, text)
	}
}

func (m *memory) unprepare(n *noticed) {
	if n.stmt != nil {
		_ = n.stmt.Close()
		n.stmt = nil
		m.prepared--
	}
}

// prepared runs a receipt and one write as a compound that is prepared on the
// connection; ready false if there is none for them. The connection may hold a
// *delivery.Session or not.
func (c *compounds) prepared(ctx context.Context, conn driver.Conn, calls []delivery.Call) (results []driver.Result, ready bool, err error) {
	s, ok := conn.(*delivery.Session)
	if !ok || len(calls) != 2 || !isReceipt(calls[0].SQL) || len(calls[1].SQL) > maxNoticedText || !bindable(calls[1].Args) || c.full.Load() > time.Now().UnixNano() {
		return nil, false, nil
	}
	m := memoryOf(s)
	n := m.notice(calls[1].SQL)
	if n.never || n.stmt == nil && (n.count < c.prepareFrom || !c.ready(ctx, s, m, n, calls)) {
		return nil, false, nil
	}
	if n.write.generates() && !c.idIsKnown(ctx, conn, n.write) {
		return nil, false, nil
	}
	args := joinArgs(calls)
	if n.stmt.NumInput() != len(args) {
		return nil, false, nil
	}
	if n.write.generates() {
		results, err = queryPrepared(ctx, n, calls, args)
	} else {
		results, err = execPrepared(ctx, n, args)
	}
	if err == nil {
		return results, true, nil
	}
	var server *mysql.MySQLError
	answered := errors.As(err, &server)
	gone := answered && (notRun(err) || server.Number == numUnknownPrepared || server.Number == numPrepareAgain)
	if !answered || gone {
		m.unprepare(n)
	}
	if gone {
		return nil, false, nil // nothing was run
	}
	return nil, true, settle(ctx, s.Conn, calls, err, false)
}

// ready prepares the compound for a text. A failure leaves the text to be sent
// as it is.
func (c *compounds) ready(ctx context.Context, s *delivery.Session, m *memory, n *noticed, calls []delivery.Call) bool {
	writes, ok := c.prepare(ctx, s.Conn, calls)
	if !ok {
		n.never = c.known() != notAsked
		return false
	}
	text := leanCompound(calls, writes)
	if writes[1].generates() {
		text = newParametrized(calls, writes)
	}
	if m.prepared >= maxPrepared {
		m.unprepare(m.texts[m.oldest(func(n *noticed) bool { return n.stmt != nil })])
	}
	stmt, err := delivery.Prepare(ctx, s.Conn, text)
	if err != nil {
		var server *mysql.MySQLError
		if errors.As(err, &server) {
			n.never = true
			if server.Number == numTooManyPrepared {
				// Others may need the room more.
				c.full.Store(time.Now().Add(tableMemory).UnixNano())
				n.never = false
			}
		}
		return false
	}
	n.write, n.stmt = writes[1], stmt
	m.prepared++
	return true
}

// execPrepared runs a compound whose rows affected are those of its write and
// one for the receipt.
func execPrepared(ctx context.Context, n *noticed, args []driver.NamedValue) ([]driver.Result, error) {
	res, err := delivery.StmtExec(ctx, n.stmt, args)
	if err != nil {
		return nil, err
	}
	rows, err := res.RowsAffected()
	if err != nil {
		return nil, inDoubt(err)
	}
	return []driver.Result{result{rows: 1}, result{rows: rows - 1}}, nil
}

func queryPrepared(ctx context.Context, n *noticed, calls []delivery.Call, args []driver.NamedValue) ([]driver.Result, error) {
	rows, err := delivery.StmtQuery(ctx, n.stmt, args)
	if err != nil {
		return nil, err
	}
	return compoundRow(calls, []*write{{}, n.write}, rows)
}

// bindable reports whether the server takes the values as parameters for the
// same as in the text, where the driver writes them with interpolateParams.
// That a number with a fraction is a DOUBLE there and a DECIMAL here makes a
// difference, as does the introducer of a []byte.
func bindable(args []driver.NamedValue) bool {
	for i := range args {
		switch args[i].Value.(type) {
		case nil, int64, uint64, bool, string, time.Time:
		default:
			return false
		}
	}
	return true
}

func joinArgs(calls []delivery.Call) []driver.NamedValue {
	n := 0
	for _, call := range calls {
		n += len(call.Args)
	}
	args := make([]driver.NamedValue, 0, n)
	for _, call := range calls {
		for _, a := range call.Args {
			a.Ordinal = len(args) + 1
			args = append(args, a)
		}
	}
	return args
}
