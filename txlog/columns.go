package txlog

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

// transactionType is the value of the column transaction_type: Sharding-JDBC 1.x's name for
// its best-efforts-delivery soft transactions.
const transactionType = "BestEffortsDelivery"

// row is a statement as a row of the table. It is a copy: a caller that has stopped waiting
// may write to its unit.
type row struct {
	size                                  int
	id, source, text, params, transaction string
	no, count                             int
	settings, notReplayable, receipt      string
	fingerprint                           string
	token                                 string
	lease                                 int64
}

// rowOf returns the row of u's statement i; settings comes from encodeSettings.
func rowOf(u *Unit, i int, settings string) row {
	text, params := encode(&u.Statements[i])
	if i == 0 && len(u.After) > 0 {
		params = wrapList(afterStart, u.After, params)
	}
	if i == 0 && len(u.Order) > 0 && u.Order[0].Number != 0 { // else they are still to be issued
		params = wrapList(orderStart, u.Order, params)
	}
	return row{
		id: entry.RowID(u.ID, i), source: u.DataSource, text: text, params: params,
		transaction: u.TransactionID, no: i, count: len(u.Statements),
		settings: settings, notReplayable: u.NotReplayable, receipt: u.Receipt, fingerprint: u.Fingerprint, token: u.Lease.Token,
	}
}

// rowOverhead is an upper bound for the size of a row without its text.
const rowOverhead = 1 << 10

// column is a column of transaction_log: its value in a new row, and how to read it into a
// unit.
type column struct {
	name string
	// text or number is the value that a new row brings. If time is set, the log's time is
	// added to the number.
	text   func(*row) string
	number func(*row) int64
	time   bool
	// fixed is the SQL for a value that all new rows share.
	fixed string
	// within is the SQL for a row that is written in a transaction of the application, due at once and
	// free; empty means the usual value, without the log's time.
	within string
	// doubt is set if the value there depends on whether the unit has a receipt. Its owner needs no
	// lease, so that a job's attempt may run beside its own. Without a receipt, a first attempt that
	// meets a duplicate key is refused.
	doubt bool
	// asID is set if the value usually equals the row's id.
	asID bool
	// read takes the value from a unit's first row; nil means that the column is not read.
	read func(*reading, sql.NullString)
	// by lists the statements that change the column afterwards.
	by []kind
}

// columns lists the columns of the schema in their order. The first one is the key.
var columns = []column{
	{name: "id", text: func(r *row) string { return r.id },
		read: func(r *reading, v sql.NullString) { r.unit.ID = r.text(v) }},
	{name: "transaction_type", fixed: `'` + transactionType + `'`},
	{name: "data_source", text: func(r *row) string { return r.source }, by: []kind{releaseOwned, turnRows},
		read: func(r *reading, v sql.NullString) { r.unit.DataSource = r.text(v) }},
	{name: "sql", text: func(r *row) string { return r.text }, by: []kind{amendRow}, read: (*reading).readSQL},
	{name: "parameters", text: func(r *row) string { return r.params }, by: []kind{amendRow}, read: (*reading).readParams},
	{name: "creation_time", time: true,
		read: func(r *reading, v sql.NullString) { r.unit.CreatedAt = time.UnixMilli(r.number(v)) }},
	{name: "async_delivery_try_times", fixed: `0`, by: []kind{releaseOwned, retryRows, turnRows},
		read: func(r *reading, v sql.NullString) { r.unit.Tries = int(r.number(v)) }},
	{name: "transaction_id", text: func(r *row) string { return r.transaction }, asID: true,
		read: func(r *reading, v sql.NullString) { r.unit.TransactionID = r.text(v) }},
	{name: "statement_no", number: func(r *row) int64 { return int64(r.no) }},
	{name: "statement_count", number: func(r *row) int64 { return int64(r.count) }, read: (*reading).readCount},
	{name: "settings", text: func(r *row) string { return r.settings }, by: []kind{locateOwned, releaseOwned, noteUndo, turnRows}, read: (*reading).readSettings},
	{name: "not_replayable", text: func(r *row) string { return r.notReplayable },
		read: func(r *reading, v sql.NullString) { r.unit.NotReplayable = r.text(v) }},
	{name: "receipt", text: func(r *row) string { return r.receipt }, asID: true, by: []kind{amendUnit, turnRows},
		read: func(r *reading, v sql.NullString) { r.unit.Receipt = r.text(v) }},
	{name: "fingerprint", text: func(r *row) string { return r.fingerprint },
		read: func(r *reading, v sql.NullString) { r.unit.Fingerprint = r.text(v) }},
	{name: "in_doubt", fixed: `1`, doubt: true, by: []kind{renewOwned, takeRows, releaseOwned, amendUnit, turnRows},
		read: func(r *reading, v sql.NullString) { r.unit.InDoubt = r.number(v) != 0 }},
	{name: "next_try_time", number: func(r *row) int64 { return r.lease }, time: true, by: []kind{renewOwned, takeRows, releaseOwned, retryRows, parkRows, turnRows, freeUnit, blockUnit},
		read: func(r *reading, v sql.NullString) { r.next = r.number(v) }},
	{name: "last_error", fixed: `NULL`, by: []kind{releaseOwned, turnRows},
		read: func(r *reading, v sql.NullString) { r.unit.LastError = v.String }},
	{name: "parked", fixed: `0`, by: []kind{releaseOwned, retryRows, parkRows, turnRows},
		read: func(r *reading, v sql.NullString) { r.unit.Parked = r.number(v) != 0 }},
	{name: "lease_token", text: func(r *row) string { return r.token }, by: []kind{takeRows, releaseOwned, retryRows, parkRows, turnRows},
		read: func(r *reading, v sql.NullString) { r.unit.Leased = v.Valid }},
	{name: "lease_until", number: func(r *row) int64 { return r.lease }, time: true, within: "NULL", by: []kind{renewOwned, takeRows, releaseOwned, retryRows, parkRows, turnRows, freeUnit}},
}

// sqlName is the column's name in a statement, see shape.text.
func (c *column) sqlName() string {
	if c.name == "sql" { // a keyword
		return "{sql}"
	}
	return c.name
}

// isParam reports whether a row of an INSERT has a parameter for the column.
func (c *column) isParam() bool { return c.text != nil || c.number != nil }

// Derived from columns:
var (
	// insertInto begins an INSERT; columnNames holds its list of columns for each database.
	insertInto  string
	columnNames = map[sqltext.Flavor]string{}
	// unitColumns are read for every unit, from its first row.
	unitColumns string
	// newRow is a row of VALUES.
	newRow string
	// newRows selects the rows of an INSERT into PostgreSQL from arrays.
	newRows string
	// rowArgs is the number of parameters in newRow.
	rowArgs int
	// readColumns are the columns in unitColumns.
	readColumns []*column
)

func init() {
	var names, read, values, selected, arrays, aliases []string
	for i := range columns {
		c := &columns[i]
		names = append(names, c.sqlName())
		if c.read != nil {
			read, readColumns = append(read, c.sqlName()), append(readColumns, c)
		}
		value, of := c.fixed, c.fixed
		if c.isParam() {
			rowArgs++
			value = "?"
			kind, n := "text[]", strconv.Itoa(rowArgs)
			if c.number != nil {
				kind = "bigint[]"
			}
			arrays, aliases = append(arrays, "$"+n+"::"+kind), append(aliases, "c"+n)
			switch {
			case rowArgs == 1:
				of = "r.c1"
			case c.asID:
				of = fmt.Sprintf("COALESCE(r.c%s, ($%[1]s::%s)[1], r.c1)", n, kind)
			default:
				of = fmt.Sprintf("COALESCE(r.c%s, ($%[1]s::%s)[1])", n, kind)
			}
		}
		switch {
		case c.time && c.number != nil:
			value, of = "{now} + ?", "{now} + "+of
		case c.time:
			value, of = "{now}", "{now}"
		}
		values, selected = append(values, value), append(selected, of)
	}
	list := func(all []string) string { return strings.Join(all, ", ") }
	insertInto = "INSERT INTO transaction_log (" + list(names) + ")"
	for _, f := range []sqltext.Flavor{sqltext.MySQL, sqltext.Postgres, sqltext.SQLite} {
		columnNames[f] = f.Text(" (" + list(names) + ")")
	}
	unitColumns = list(read) + ", {now}"
	newRow = "(" + list(values) + ")"
	newRows = " SELECT " + list(selected) + " FROM unnest(" + list(arrays) + ") AS r (" + list(aliases) + ")"
}

// args appends the parameters of newRow.
func (r *row) args(args []any) []any {
	for i := range columns {
		switch c := &columns[i]; {
		case c.text != nil:
			args = append(args, c.text(r))
		case c.number != nil:
			args = append(args, c.number(r))
		}
	}
	return args
}

// insert writes rows by one statement. It pads a list of rows with copies of the smallest
// one.
func (db *database) insert(ctx context.Context, q runner, rows []*row) error {
	if len(rows) > 1 && db.backend.Flavor == sqltext.Postgres {
		return insertArrays(ctx, q, rows)
	}
	size, least := len(rows), rows[0]
	if size > 1 {
		size = insertSize(size)
	}
	args := make([]any, 0, size*rowArgs)
	for _, r := range rows {
		args = r.args(args)
		if r.size < least.size {
			least = r
		}
	}
	for range size - len(rows) {
		args = least.args(args)
	}
	_, err := run(ctx, q, shape{kind: insertRows, rows: size}, args...)
	return err
}

// insertArrays writes any number of rows into PostgreSQL by one statement: each column is an
// array of the rows' values. This needs only one prepared statement, and its parameters cost
// the server less than a list of rows. If an array is shorter than the first, its first
// value stands for the remaining rows; if it is empty, their id does.
func insertArrays(ctx context.Context, q runner, rows []*row) error {
	args := make([]any, 0, rowArgs)
	for i := range columns {
		c := &columns[i]
		switch {
		case len(args) == 0:
			args = append(args, arrayOfAll(rows, c.text, sqltext.AppendElement))
		case c.asID && !slices.ContainsFunc(rows, func(r *row) bool { return c.text(r) != r.id }):
			args = append(args, "{}")
		case c.text != nil:
			args = append(args, arrayOf(rows, c.text, sqltext.AppendElement))
		case c.number != nil:
			args = append(args, arrayOf(rows, c.number, entry.AppendInt))
		}
	}
	_, err := run(ctx, q, shape{kind: insertColumns}, args...)
	return err
}

// arrayOf returns a column's values in PostgreSQL's array notation, which every driver can
// send: all values, or only the first if all rows share it.
func arrayOf[T comparable](rows []*row, of func(*row) T, add func([]byte, T) []byte) string {
	first := of(rows[0])
	for _, r := range rows[1:] {
		if of(r) != first {
			return arrayOfAll(rows, of, add)
		}
	}
	return arrayOfAll(rows[:1], of, add)
}

func arrayOfAll[T any](rows []*row, of func(*row) T, add func([]byte, T) []byte) string {
	var stack [2 << 10]byte
	b := append(stack[:0], '{')
	for i, r := range rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = add(b, of(r))
	}
	return string(append(b, '}'))
}

const (
	// oddSQL begins the column sql of a text that a PostgreSQL text column rejects: invalid
	// UTF-8, or a NUL. The text follows in base64. oddSQL is a comment, so that running the
	// column's text does no harm. A text that itself begins like this is also kept in base64,
	// so that every text is read back correctly.
	oddSQL = "-- base64 "
	// preparedStart begins the parameters of a statement that the application prepared.
	preparedStart = `{"prepared":`
	// requiredStart begins the parameters of a statement that has a row requirement. A job too
	// old to know it cannot read the parameters, so that it parks the entry and does not run it
	// unchecked.
	requiredStart = `{"rows":"`
	requiredThen  = `"` + wrapThen
	// partStart begins the parameters of a statement in a compensable group. An older job,
	// which would not keep the receipt for the compensation, cannot read them.
	partStart = `{"part":`
	// afterStart begins the first statement's parameters in a unit that waits for others. An
	// older job, which would not wait, cannot read them.
	afterStart = `{"after":`
	// orderStart begins them in a unit under order keys. An older job, which would not keep the order,
	// cannot read them.
	orderStart = `{"order":`
	wrapThen   = `,"parameters":`
	wrapEnd    = `}`
)

// wrap prefixes the parameters with a value between start and then.
func wrap(start, what, then, params string) string {
	return start + what + then + cmp.Or(params, "[]") + wrapEnd
}

// unwrap reverses wrap. It returns ok false if text does not begin with start, and whole
// false if a part of it is missing.
func unwrap(text, start, then string) (what, params string, ok, whole bool) {
	rest, ok := strings.CutPrefix(text, start)
	if !ok {
		return "", text, false, true
	}
	what, params, found := strings.Cut(rest, then)
	params, ended := strings.CutSuffix(params, wrapEnd)
	if params == "[]" {
		params = ""
	}
	return what, params, true, found && ended
}

// wrapList returns the parameters of a unit's first statement with a list: the units that it waits for
// (afterStart), or its order keys (orderStart).
func wrapList[T any](start string, list []T, params string) string {
	if len(list) == 0 {
		return params
	}
	b, _ := json.Marshal(list)
	return wrap(start, string(b), wrapThen, params)
}

// list reverses wrapList. problem describes an unreadable list.
func (r *reading) list(text, start string, to any, problem string) (params string) {
	list, params, there, whole := unwrap(text, start, wrapThen)
	if there && (json.Unmarshal([]byte(list), to) != nil || !whole) {
		r.note(problem)
	}
	return params
}

// encode returns the texts of the columns sql and parameters.
func encode(s *entry.Statement) (text, params string) {
	text, params = s.SQL, s.Params
	if !entry.StorableText(text) || strings.HasPrefix(text, oddSQL) {
		text = oddSQL + base64.StdEncoding.EncodeToString([]byte(text))
	}
	if s.Prepared {
		params = wrap(preparedStart, "", "", params)
	}
	if s.Required.Given() {
		params = wrap(requiredStart, s.Required.Sign(), requiredThen, params)
	}
	if s.Part != 0 {
		params = wrap(partStart, strconv.Itoa(s.Part), wrapThen, params)
	}
	return text, params
}

// encodeSettings returns the text of the column settings.
func encodeSettings(u *Unit) string {
	var stack [384]byte
	b := entry.AppendQuoted(append(stack[:0], `{"settings":`...), u.Settings)
	if u.Session != "" {
		b = entry.AppendQuoted(append(b, `,"session":`...), u.Session)
	} else if u.Account != "" {
		b = entry.AppendQuoted(append(b, `,"account":`...), u.Account)
	}
	if u.Place != "" {
		b = entry.AppendQuoted(append(b, `,"receipts":`...), u.Place)
	}
	if u.TraceParent != "" {
		b = entry.AppendQuoted(append(b, `,"traceparent":`...), u.TraceParent)
	}
	if u.CompensateAfter > 0 {
		b = strconv.AppendInt(append(b, `,"turn_after":`...), entry.Millis(u.CompensateAfter), 10)
	}
	if u.ContendedFrom > 0 {
		b = strconv.AppendInt(append(b, `,"contended_from":`...), entry.Millis(u.ContendedFrom), 10)
	}
	if u.Undo != nil {
		b = u.Undo.AppendTo(append(b, `,"undo":`...))
	}
	return string(append(b, '}'))
}

// errorText makes s storable: it replaces invalid characters, then cuts a text that is too
// long.
func errorText(s string) string { return entry.CutText(s, entry.MaxErrorText) }

// reading reads a unit from its first row, column by column as text, so that an unreadable
// value does not hide the others.
type reading struct {
	unit  *Unit
	first entry.Statement
	rows  int
	// next is next_try_time.
	next int64
	// column is the column being read, problem the first unreadable one.
	column  string
	problem error
}

func (r *reading) note(why string) {
	if r.problem == nil {
		r.problem = fmt.Errorf("txlog: the column %s %s", r.column, why)
	}
}

func (r *reading) text(v sql.NullString) string {
	if !v.Valid {
		r.note("is NULL")
	}
	return v.String
}

func (r *reading) number(v sql.NullString) int64 {
	n, err := strconv.ParseInt(r.text(v), 10, 64)
	if err != nil {
		r.note("is not a number")
	}
	return n
}

func (r *reading) readSQL(v sql.NullString) {
	r.first.SQL = r.text(v)
	if text, odd := strings.CutPrefix(v.String, oddSQL); odd {
		b, err := base64.StdEncoding.DecodeString(text)
		if r.first.SQL = string(b); err != nil {
			r.note("cannot be decoded")
		}
	}
}

func (r *reading) readParams(v sql.NullString) {
	s := &r.first
	params := r.list(r.text(v), orderStart, &r.unit.Order, "does not say in what order the unit is to be delivered")
	params = r.list(params, afterStart, &r.unit.After, "does not say which units must be delivered before")
	number, params, part, whole := unwrap(params, partStart, wrapThen)
	if part {
		n, err := strconv.Atoi(number)
		if s.Part = n; err != nil || n < 1 || !whole {
			r.note("does not say which part of its group the statement is of")
		}
	}
	sign, params, required, whole := unwrap(params, requiredStart, requiredThen)
	if required {
		if s.Required, required = entry.ReadRequirement(sign); !required || !whole {
			r.note("does not say how many rows the statement must change")
		}
	}
	_, s.Params, s.Prepared, _ = unwrap(params, preparedStart, "")
}

func (r *reading) readCount(v sql.NullString) {
	if r.rows = int(r.number(v)); r.rows < 1 || r.rows > entry.MaxStatements {
		r.note("is not between 1 and " + strconv.Itoa(entry.MaxStatements))
		r.rows = 1
	}
}

// storedSettings is the column settings: the session settings of the unit's delivery, and
// the unit's origin.
type storedSettings struct {
	Settings        string      `json:"settings"`
	Session         string      `json:"session,omitempty"`
	Account         string      `json:"account,omitempty"`
	Place           string      `json:"receipts,omitempty"`
	TraceParent     string      `json:"traceparent,omitempty"`
	CompensateAfter int64       `json:"turn_after,omitempty"`
	Contended       int64       `json:"contended_from,omitempty"`
	Undo            *entry.Undo `json:"undo,omitempty"`
}

func (r *reading) readSettings(v sql.NullString) {
	var s storedSettings
	if json.Unmarshal([]byte(r.text(v)), &s) != nil {
		r.note("is not valid JSON")
		return
	}
	u := r.unit
	u.Settings, u.Session, u.Account, u.Place, u.TraceParent = s.Settings, s.Session, s.Account, s.Place, s.TraceParent
	u.CompensateAfter, u.Undo = time.Duration(s.CompensateAfter)*time.Millisecond, s.Undo
	u.ContendedFrom = time.Duration(s.Contended) * time.Millisecond
	if u.Undo != nil && len(u.Undo.Parts) == 0 {
		r.note("does not say which parts the group has")
	}
}

// unitOf reads a unit from the values of unitColumns. Unreadable reports the first problem.
func unitOf(values []sql.NullString) *Unit {
	u := &Unit{}
	r := reading{unit: u}
	for i, c := range readColumns {
		r.column = c.name
		c.read(&r, values[i])
	}
	now, _ := strconv.ParseInt(values[len(readColumns)].String, 10, 64)
	u.Blocked = r.next >= entry.WaitsFrom
	u.Leased = u.Leased && r.next > now && !u.Blocked
	r.next = min(r.next, entry.WaitsFrom)
	u.ReadAt = time.UnixMilli(now)
	if u.AtOnce = r.next == atOnce; u.AtOnce {
		r.next, u.ContendedFrom = now, 0 // an operator retried it
	}
	u.NextTry = time.UnixMilli(r.next)
	u.Statements = make([]entry.Statement, r.rows)
	u.Statements[0] = r.first
	u.Unreadable = r.problem
	return u
}

// firstRows runs a query for first rows and returns their units, without the statements
// after the first.
func firstRows(ctx context.Context, q runner, sh shape, args ...any) (all []*Unit, err error) {
	values := make([]sql.NullString, len(readColumns)+1)
	to := make([]any, len(values))
	for i := range values {
		to[i] = &values[i]
	}
	err = each(ctx, q, sh, args, func(rows *sql.Rows) error {
		err := rows.Scan(to...)
		all = append(all, unitOf(values))
		return err
	})
	return all, err
}

// loadStatements reads the statements after the first one of each unit.
func loadStatements(ctx context.Context, q runner, all []*Unit) error {
	var ids []string
	of := map[string]*Unit{}
	missing := map[*Unit]int{}
	for _, u := range all {
		if more := entry.RowIDs(u.ID, len(u.Statements))[1:]; len(more) > 0 {
			of[u.ID], missing[u] = u, len(more)
			ids = append(ids, more...)
		}
	}
	err := eachIn(ctx, q, selectRows, ids, func(rows *sql.Rows) error {
		var id string
		var text, params sql.NullString
		if err := rows.Scan(&id, &text, &params); err != nil {
			return err
		}
		u := of[entry.HeadID(id)]
		if u == nil {
			return nil
		}
		missing[u]--
		n, _ := strconv.ParseUint(id[entry.IDPrefix:], 16, 12)
		r := reading{unit: u, column: "sql"}
		r.readSQL(text)
		r.column = "parameters"
		r.readParams(params)
		u.Statements[n] = r.first
		if r.problem != nil && u.Unreadable == nil {
			u.Unreadable = fmt.Errorf("statement %d of %d: %w", n+1, len(u.Statements), r.problem)
		}
		return nil
	})
	for u, n := range missing {
		if n > 0 && u.Unreadable == nil {
			u.Unreadable = fmt.Errorf("txlog: %d of the unit's %d statements are missing", n, len(u.Statements))
		}
	}
	return err
}
