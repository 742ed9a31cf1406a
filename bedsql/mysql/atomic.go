package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
)

// compounds runs several statements as one compound statement. MariaDB supports these
// outside of procedures, MySQL does not. compounds remembers its knowledge of the server.
type compounds struct {
	// known is set once the server is known to support compounds.
	known  atomic.Bool
	mu     sync.Mutex
	tables map[string]tableIDs
	// binds is set if the driver is known to send values as parameters, and not in the text.
	binds bool
	// prepareFrom is the number of uses on a connection from which a text is prepared.
	prepareFrom int
	// full is the time, in ns since 1970, until which preparing is suspended because the server
	// has reached its limit.
	full atomic.Int64
}

// minMajor and minMinor are the oldest maintained release of MariaDB. Older ones may work,
// but are untested.
const minMajor, minMinor = 10, 6

// atomic implements Dialect.Atomic. Errors keep the server's number, SQLSTATE and message.
// The session ends up as after the separate statements, except for ROW_COUNT(), FOUND_ROWS()
// and SHOW WARNINGS, which are about the compound.
func (c *compounds) atomic(ctx context.Context, conn driver.Conn, calls []dialect.Call) ([]driver.Result, bool, error) {
	if results, ready, err := c.prepared(ctx, conn, calls); ready {
		return results, true, err
	}
	writes, ok := c.prepare(calls)
	if !ok {
		return nil, false, nil
	}
	for i, w := range writes {
		if calls[i].Prepared && !c.bindable(calls[i].Args) {
			return nil, false, nil // its values are not to be put into the text
		}
		if w.generates() && !attempt.IsReceipt(w.text) && !c.idIsKnown(ctx, conn, w) {
			return nil, false, nil
		}
	}
	compound := newCompound(calls).atomic(calls, writes)
	rows, before, err := attempt.Query(ctx, conn, compound.text.String(), compound.args)
	if err != nil {
		if notRun(err) {
			return nil, false, nil
		}
		return nil, true, leaveNoneOpen(ctx, conn, calls, err, before)
	}
	results, err := compoundRow(calls, writes, rows)
	if err != nil {
		return nil, true, leaveNoneOpen(ctx, conn, calls, err, false)
	}
	return results, true, nil
}

// compoundRow reads the row of a compound. It comes after the COMMIT: despite a later
// failure, the work is done.
func compoundRow(calls []dialect.Call, writes []*write, rows driver.Rows) ([]driver.Result, error) {
	defer func() { _ = rows.Close() }()
	row := make([]driver.Value, len(rows.Columns()))
	if err := rows.Next(row); errors.Is(err, io.EOF) {
		return nil, errors.New("bed: the server gave no result of a compound statement")
	} else if err != nil {
		return nil, err
	}
	results := make([]driver.Result, len(calls))
	take := func() (n int64) {
		if len(row) > 0 {
			n, row = attempt.Number(row[0]), row[1:]
		}
		return n
	}
	for i, w := range writes {
		r := result{rows: 1}
		if !attempt.IsReceipt(calls[i].SQL) {
			r.rows = take()
			if w.generates() {
				r.id = take()
			}
		}
		results[i] = r
	}
	return results, nil
}

// commitWith implements Dialect.CommitWith.
func (c *compounds) commitWith(ctx context.Context, conn driver.Conn, calls []dialect.Call) (bool, error) {
	writes, ok := c.prepare(calls)
	if !ok {
		return false, nil
	}
	compound := newCompound(calls).inTransaction(calls, writes)
	_, before, err := attempt.Exec(ctx, conn, compound.text.String(), compound.args)
	if err == nil {
		return true, nil
	}
	if notRun(err) {
		return false, nil
	}
	open, err := endOpen(ctx, conn, calls, err, before)
	if (open || before) && slices.ContainsFunc(calls, func(c dialect.Call) bool { return c.Entries != "" }) {
		err = &dialect.EntriesError{Err: err}
	}
	return true, err
}

// prepare reads the calls for a compound; false if the calls or the server do not allow one.
func (c *compounds) prepare(calls []dialect.Call) ([]*write, bool) {
	if len(calls) == 0 || len(calls) > maxCompoundCalls || !c.known.Load() {
		return nil, false
	}
	writes := make([]*write, len(calls))
	size, params := 0, 0
	for i, call := range calls {
		if size += len(call.SQL); size > maxCompoundText {
			return nil, false
		}
		w, ok := readWrite(call.SQL)
		if !ok || w.params != len(call.Args) {
			return nil, false
		}
		for _, a := range call.Args {
			if a.Name != "" {
				return nil, false
			}
		}
		if params += w.params; params > maxCompoundParams {
			return nil, false
		}
		writes[i] = w
	}
	return writes, true
}

// runsCompounds reads the result of VERSION(): "10.11.6-MariaDB-log".
func runsCompounds(version string) bool {
	if !strings.Contains(version, "MariaDB") {
		return false
	}
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > minMajor || major == minMajor && minor >= minMinor
}

// notRun reports whether the server could not parse the compound, so that no part of it ran.
// A mistake in a single statement then shows in its separate execution; sql_mode=ORACLE has
// another syntax.
func notRun(err error) bool {
	return hasNumber(err,
		1064, // ER_PARSE_ERROR
		1149, // ER_SYNTAX_ERROR
		1295) // ER_UNSUPPORTED_PS
}

// leaveNoneOpen ensures that no transaction is left open after a failed compound with a handler,
// and adds to its error the missing information.
func leaveNoneOpen(ctx context.Context, conn driver.Conn, calls []dialect.Call, err error, before bool) error {
	if server := serverError(err); server != nil && !before {
		if unmet := rowsError(calls, server); unmet != nil {
			return unmet // from the handler, after its rollback
		}
		if slices.Contains([]string{"21", "22", "23"}, string(server.SQLState[:2])) { // data that does not fit
			return err
		}
	}
	_, err = endOpen(ctx, conn, calls, err, before)
	return err
}

// endOpen is leaveNoneOpen for a compound without a handler. open reports that its transaction was
// still open: COMMIT was not reached.
func endOpen(ctx context.Context, conn driver.Conn, calls []dialect.Call, err error, before bool) (open bool, _ error) {
	server := serverError(err)
	switch {
	case before:
		return false, attempt.NotSent(err, classify(err))
	case server == nil:
		return false, err // no answer
	case server.Number == 1047: // ER_UNKNOWN_COM_ERROR: a Galera node without quorum
		// It fails every statement of a compound: the ROLLBACK of the handler, statements after a
		// COMMIT, and even a COMMIT that the other nodes have received.
		_ = conn.Close()
		return false, inDoubt(err)
	}
	unmet := rowsError(calls, server)
	// The caller's context may have ended the statement.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	open, failed := txIsOpen(ctx, conn)
	if open {
		_, _, failed = attempt.Exec(ctx, conn, "ROLLBACK AND NO CHAIN NO RELEASE", nil)
	}
	if failed != nil {
		_ = conn.Close()
	}
	switch {
	case unmet != nil:
		return true, unmet // it comes before the COMMIT
	case !open && stops(server) && (failed != nil || !unwritten(ctx, conn, calls)):
		// The error may have come after the COMMIT.
		return false, inDoubt(err)
	}
	return open, err
}

// unwritten reports whether the receipt or the entry among calls is certainly missing, so that
// their transaction was rolled back.
func unwritten(ctx context.Context, conn driver.Conn, calls []dialect.Call) bool {
	for _, call := range calls {
		if call.Entries != "" {
			row, err := queryRow(ctx, conn, call.Entries)
			return err == nil && row == nil
		}
		table, ok := attempt.ReceiptTable(call.SQL)
		if !ok || len(call.Args) == 0 {
			continue
		}
		id, ok := call.Args[0].Value.(string)
		if !ok || !plainText(id) {
			return false
		}
		row, err := queryRow(ctx, conn, "SELECT 1 FROM "+table+" WHERE id = '"+id+"'")
		return err == nil && row == nil
	}
	return false
}

// stops lists the errors that may end a compound anywhere, bypassing its handlers.
func stops(err *mysql.MySQLError) bool {
	return hasNumber(err,
		5,    // EE_OUTOFMEMORY
		1028, // ER_FILSORT_ABORT
		1037, // ER_OUTOFMEMORY
		1041, // ER_OUT_OF_RESOURCES
		1119, // ER_STACK_OVERRUN
		1317, // ER_QUERY_INTERRUPTED
		1436, // ER_STACK_OVERRUN_NEED_MORE
		1969) // ER_STATEMENT_TIMEOUT
}

func inDoubt(err error) error { return attempt.Certain(err, dialect.Unknown) }

// result is the result of one statement in a compound.
type result struct{ rows, id int64 }

func (r result) LastInsertId() (int64, error) { return r.id, nil }
func (r result) RowsAffected() (int64, error) { return r.rows, nil }

// queryRow reads the first row of a query without parameters; nil without rows.
func queryRow(ctx context.Context, conn driver.Conn, query string) ([]driver.Value, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	rows, err := attempt.Ask(ctx, conn, query)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return rows[0], nil
}
