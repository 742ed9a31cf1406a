package sqltext

import (
	"slices"
	"strings"
)

// Hazards are the ways in which a second run of a DML may have another effect, by a small
// heuristic over its text. It warns; a DML without a warning may still double rows. It does
// not see:
//   - the effects of tables, triggers, views, generated columns, defaults and the
//     application's own functions, nor key columns with names other than id, uuid, guid or
//     ulid;
//   - a column set from another set column (a = b, b = a), a column read by a subquery, and
//     more than 32 columns of one SET;
//   - the order of a LIMIT's rows, and rows of a VALUES after the first.
type Hazards uint8

const (
	// SelfReferring means that a column is set from itself, without a comparison in WHERE of a
	// set column with a value that would keep the second run from finding the row (optimistic
	// locking).
	SelfReferring Hazards = 1 << iota
	// NoKey means that an INSERT names no key and has no rule for an existing row.
	NoKey
	// Limited means that a second run takes further rows: a DELETE with LIMIT, or an UPDATE
	// with LIMIT that has no order or selects by a column that it changes.
	Limited
	// NonDeterministic means that it calls a function for random numbers, generated ids or a
	// sequence's next value.
	NonDeterministic
	// Clock means that it writes its execution time as a value.
	Clock
)

// functions return another value each time.
var functions = map[string]Hazards{
	"NOW": Clock, "SYSDATE": Clock, "GETDATE": Clock, "CURDATE": Clock, "CURTIME": Clock,
	"CLOCK_TIMESTAMP": Clock, "STATEMENT_TIMESTAMP": Clock, "TRANSACTION_TIMESTAMP": Clock, "TIMEOFDAY": Clock,
	"RAND": NonDeterministic, "RANDOM": NonDeterministic, "RANDOM_NORMAL": NonDeterministic, "RANDOM_BYTES": NonDeterministic,
	"RANDOMBLOB": NonDeterministic, "GEN_RANDOM_BYTES": NonDeterministic, "GEN_RANDOM_UUID": NonDeterministic, "GEN_SALT": NonDeterministic,
	"NEWID": NonDeterministic, "SYS_GUID": NonDeterministic, "UUID_SHORT": NonDeterministic, "UUID_V4": NonDeterministic,
	"UUID_V7": NonDeterministic, "UUIDV4": NonDeterministic, "UUIDV7": NonDeterministic, "UUID_GENERATE_V1": NonDeterministic,
	"UUID_GENERATE_V1MC": NonDeterministic, "UUID_GENERATE_V4": NonDeterministic,
	"NEXTVAL": NonDeterministic, "TXID_CURRENT": NonDeterministic, "PG_CURRENT_XACT_ID": NonDeterministic,
}

// withoutArguments do so only without arguments; SQLite's also with 'now'.
var withoutArguments = map[string]Hazards{
	"UUID": NonDeterministic, "UNIX_TIMESTAMP": Clock,
	"DATE": Clock, "TIME": Clock, "DATETIME": Clock, "JULIANDAY": Clock, "UNIXEPOCH": Clock,
}

// wrapping are functions f with f(f(x)) = f(x) if the other arguments stay the same.
var wrapping = map[string]bool{
	"COALESCE": true, "IFNULL": true, "NVL": true, "GREATEST": true, "LEAST": true, "MAX": true, "MIN": true, "LAST_INSERT_ID": true,
}

// part is the parser's position in a write.
type part uint8

const (
	partOther part = iota
	// partTarget is the table to write.
	partTarget
	// partColumns is an INSERT's list.
	partColumns
	partWhere
	// partLeft, partValue and partRight are in a SET: on the left of a =, right after it, and
	// past that.
	partLeft
	partValue
	partRight
)

// write is the parser's knowledge of the current INSERT, UPDATE, DELETE or MERGE.
type write struct {
	verb  keyword
	depth int
	part  part
	found Hazards
	// names are the names of the table and its alias.
	names [2]string
	// set holds the n columns that are set.
	set [32]string
	n   int
	assignment
	// The WHERE compares a set column with a value (guarded), compares a key (keyed), or has
	// an OR (either).
	guarded, keyed, either bool
	ordered, limited       bool
	// listed is set for an INSERT with a list of columns. key is set for a key among them.
	// leads is set for a key in the first place without another key.
	listed, key, leads bool
	// made is set if the database makes the key's value. excused is set for a statement with a
	// rule for an existing row.
	made, excused bool
}

// assignment is the current assignment of a SET.
type assignment struct {
	// from is the index of its first column, of their table.
	from int
	of   string
	// own is set if its value uses its column. calls is set after a call, changes after an
	// operator, keeps if the call is of a wrapping function.
	own, calls, changes, keeps bool
	// cases counts the open CASE expressions.
	cases int
}

// watch checks t, which follows prev, for hazards.
func (p *parser) watch(t token) {
	p.varies(t)
	w := &p.write
	if w.verb == "" {
		return
	}
	if w.part == partRight {
		p.reads(t)
		if w.own && (w.changes || w.calls && !w.keeps) {
			w.found |= SelfReferring
		}
	}
	switch {
	case p.depth == w.depth && p.prev[0].char != '.' && p.turn(t):
	case w.part == partTarget:
		p.target(t)
	case w.verb == "INSERT" && w.part < partLeft:
		p.inserts(t)
	case w.part == partWhere:
		p.compares(t)
	case w.part != partOther:
		p.sets(t)
	}
	if t.char == ')' && p.depth == w.depth {
		p.endWrite()
	}
}

// varies finds calls up to t, and words like calls without parentheses, that return another
// value each time.
func (p *parser) varies(t token) {
	found, bit := Hazards(0), uint64(1)<<(p.depth&63)
	switch t.kw {
	case "WHERE", "HAVING", "RETURNING":
		p.conditions |= bit
	case "SELECT", "SET", "VALUES", "UPDATE":
		p.conditions &^= bit
	case "CURRENT_TIMESTAMP":
		if p.prev[0].char != '.' && p.prev[0].kw != "AS" {
			found = Clock
		}
	case "VALUE":
		if p.prev[0].kw == "NEXT" {
			found = NonDeterministic
		}
	}
	switch {
	case t.char == '(' && p.write.part != partTarget:
		found, _ = find(functions, p.nameOf(p.prev[0]))
	case t.char == ')':
		p.conditions &^= bit
		if p.prev[0].char == '(' {
			found, _ = find(withoutArguments, p.nameOf(p.prev[1]))
		}
	case t.typ == tokString && p.lex.flavor == SQLite && strings.EqualFold(p.textOf(t), "'now'"):
		i := 0
		if p.prev[0].char == ',' { // after the format of strftime
			i = 2
		}
		if p.prev[i].char == '(' && p.prev[i+1].typ == tokWord && p.prev[i+1].kw == "" {
			found = Clock
		}
	}
	if found != Clock || p.conditions == 0 {
		p.hazards |= found
	}
}

// turn moves to the part of the write that begins with t, if any.
func (p *parser) turn(t token) bool {
	w, next := &p.write, partOther
	switch {
	case t.kw == "SET", t.kw == "UPDATE" && p.prev[0].kw == "KEY": // ON DUPLICATE KEY UPDATE
		w.listed = true
		next = partLeft
	case t.char == ',' && w.part == partRight:
		next = partLeft
	case t.kw == "WHERE":
		next = partWhere
	case t.kw == "ORDER":
		w.ordered = true
	case t.kw == "LIMIT":
		w.limited = true
	case w.part == partRight && (t.kw == "FROM" && p.prev[0].kw != "DISTINCT" || t.kw == "RETURNING" || t.kw == "ON" || t.kw == "WHEN" && w.cases == 0):
	default:
		return false
	}
	w.part, w.assignment = next, assignment{from: w.n}
	return true
}

// target reads the names of the table, up to an INSERT's list or its rows.
func (p *parser) target(t token) {
	w := &p.write
	name := t.typ == tokIdent || t.typ == tokWord && t.kw == ""
	switch {
	case t.kw == "SELECT", t.kw == "VALUES", t.kw == "WITH", t.kw == "TABLE", t.kw == "DEFAULT":
		w.part = partOther
	case t.char == '(' && p.prev[0].kw == "":
		w.part = partColumns
	case !name || w.names[1] != "":
	case w.names[0] == "" || p.prev[0].char == '.':
		w.names[0] = p.nameOf(t)
	default:
		w.names[1] = p.nameOf(t)
	}
	w.excused = w.excused || t.kw == "IGNORE" || t.kw == "REPLACE" && p.prev[0].kw == "OR"
}

// inserts reads the part of an INSERT that concerns a key.
func (p *parser) inserts(t token) {
	w := &p.write
	switch {
	case w.part == partColumns && (t.char == ')' || t.kw == "SELECT"):
		w.part, w.listed = partOther, t.char == ')'
	case w.part == partColumns:
		if isKey(strings.Trim(p.textOf(t), "\"'`[]")) {
			w.leads = !w.key && p.prev[0].char == '('
			w.key = true
		}
	case t.kw == "EXISTS", t.kw == "CONFLICT", t.kw == "DUPLICATE":
		w.excused = true
	case t.kw == "VALUES" && p.prev[0].kw == "DEFAULT",
		t.char == ')' && p.prev[0].char == '(' && p.prev[1].kw == "VALUES",
		(t.kw == "NULL" || t.kw == "DEFAULT") && p.prev[0].char == '(' && p.prev[1].kw == "VALUES" && (w.leads || !w.listed):
		w.made = true
	}
}

// sets reads an assignment.
func (p *parser) sets(t token) {
	w := &p.write
	switch w.part {
	case partLeft:
		switch {
		case t.char == '.' && w.n > w.from: // it was the table
			w.n--
			w.of = w.set[w.n]
		case t.char == '=', t.typ == tokAssign:
			w.part = partValue
		case t.typ == tokWord || t.typ == tokIdent:
			name := p.nameOf(t)
			w.key = w.key || isKey(name)
			if w.n < len(w.set) {
				w.set[w.n] = name
				w.n++
			}
		}
	case partValue:
		w.keeps, _ = find(wrapping, p.textOf(t))
		w.changes = t.kw == "NOT" || t.char == '!'
		w.part = partRight
		fallthrough
	default:
		switch t.kw {
		case "SELECT":
			w.from = w.n // what a subquery reads is not looked at
		case "CASE":
			w.cases++
		case "END":
			w.cases--
		}
		w.calls = w.calls || t.char == '('
		w.changes = w.changes || strings.IndexByte("+-*/%|&^#~", t.char) >= 0
	}
}

// reads checks whether the name before t is a set column's, used for its old value:
// VALUES(a) is the new row's, and @a a parameter.
func (p *parser) reads(t token) {
	w, name, before := &p.write, p.prev[0], p.prev[1]
	if before.char == '.' {
		of := p.nameOf(p.prev[2])
		if w.of != "" && !sameName(of, w.of) || w.of == "" && !sameName(of, w.names[0]) && !sameName(of, w.names[1]) {
			return
		}
		before = p.prev[3]
	}
	switch {
	case name.typ != tokWord && name.typ != tokIdent, t.char == '(', t.char == '.':
	case before.char == '@', before.char == ':', before.char == '(' && (p.prev[2].kw == "VALUES" || p.prev[2].kw == "VALUE"):
	case p.isSet(w.from, name):
		w.own = true
		w.changes = w.changes || w.cases > 0 && before.kw != "THEN" && before.kw != "ELSE"
	}
}

// isSet reports whether t names one of the set columns after the first from.
func (p *parser) isSet(from int, t token) bool {
	name := p.nameOf(t)
	return slices.ContainsFunc(p.write.set[from:p.write.n], func(column string) bool { return sameName(column, name) })
}

// compares reads a condition: name = value, up to t.
func (p *parser) compares(t token) {
	w := &p.write
	switch {
	case p.depth > w.depth:
	case t.kw == "OR":
		w.either = true
	case (p.prev[0].char == '=' || p.prev[0].kw == "IS") && t.typ != tokIdent && (t.typ != tokWord || t.kw == "NULL"):
		w.keyed = w.keyed || isKey(p.nameOf(p.prev[1]))
		w.guarded = w.guarded || p.isSet(0, p.prev[1])
	}
}

// endWrite draws the conclusions at the end of a write.
func (p *parser) endWrite() {
	w := &p.write
	if w.guarded && !w.either {
		w.found &^= SelfReferring
	}
	switch w.verb {
	case "INSERT":
		if (w.made || w.listed && !w.key) && !w.excused {
			w.found |= NoKey
		}
	case "UPDATE", "DELETE":
		if w.limited && (w.either || !w.keyed) && (w.verb == "DELETE" || !w.ordered || w.guarded) {
			w.found |= Limited
		}
	}
	p.hazards |= w.found
	*w = write{}
}

// isKey reports whether a column of that name is a row's key, and not a reference to another
// row's.
func isKey(name string) bool {
	return sameName(name, "id") || sameName(name, "uuid") || sameName(name, "guid") || sameName(name, "ulid")
}

// sameName compares names as most databases compare column names.
func sameName(a, b string) bool { return a != "" && strings.EqualFold(a, b) }
