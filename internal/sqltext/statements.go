package sqltext

import (
	"strings"
	"unicode/utf8"
)

func (p *parser) begin() Class {
	f := p.lex.flavor
	p.step()
	if f == Postgres || f == SQLite || p.atEnd() {
		return Class{Kind: Control, ImplicitCommit: f == MySQL}
	}
	switch p.tok.kw {
	case "WORK":
		return Class{Kind: Control, ImplicitCommit: f == MySQL}
	case "TRAN", "TRANSACTION", "ISOLATION", "READ", "DEFERRED", "IMMEDIATE", "EXCLUSIVE", "CONCURRENT":
		if f == ANSI {
			return Class{Kind: Control}
		}
	}
	// A compound statement: BEGIN NOT ATOMIC … END.
	p.body = true
	p.push(false)
	return Class{Kind: Opaque}
}

func (p *parser) start() Class {
	p.step()
	if p.tok.kw == "TRANSACTION" && p.lex.flavor != SQLite {
		return Class{Kind: Control, ImplicitCommit: p.lex.flavor == MySQL}
	}
	return Class{Kind: Opaque}
}

// commit reads a COMMIT, or a synonym of COMMIT or ROLLBACK.
func (p *parser) commit(k Kind) Class {
	p.step()
	if p.tok.kw == "PREPARED" {
		return Class{Kind: Opaque}
	}
	return Class{Kind: k}
}

func (p *parser) rollback() Class {
	p.step()
	if p.tok.kw == "PREPARED" {
		return Class{Kind: Opaque}
	}
	named := p.tok.kw == "TRANSACTION" && p.lex.flavor == SQLite
	switch p.tok.kw {
	case "WORK", "TRANSACTION", "TRAN":
		p.step()
	}
	if named && p.tok.kw != "TO" && !p.atEnd() {
		// SQLite accepts a name here and ignores it.
		p.step()
	}
	if p.skip("TO") {
		return p.named(RollbackTo)
	}
	return Class{Kind: Rollback}
}

// named reads [SAVEPOINT] name.
func (p *parser) named(k Kind) Class {
	t := p.tok
	if t.kw == "SAVEPOINT" && k != Savepoint {
		p.step()
		if !p.atEnd() {
			t = p.tok
		}
	}
	switch {
	case t.typ == tokWord, t.typ == tokIdent:
	case t.typ == tokString && (p.lex.flavor == SQLite || p.lex.flavor == MySQL):
	default:
		return Class{Kind: Opaque}
	}
	name, ok := fold(p.lex.flavor, t.typ != tokWord, p.textOf(t))
	if !ok || name == "" {
		return Class{Kind: Opaque}
	}
	return Class{Kind: k, Name: name}
}

// postgresName is the number of bytes that PostgreSQL keeps of a name.
const postgresName = 63

// fold brings an identifier into the form that the database compares. ok is false for an
// identifier with escapes.
func fold(f Flavor, quoted bool, name string) (folded string, ok bool) {
	if quoted {
		if c := name[0]; c == 'U' || c == 'u' {
			if strings.IndexByte(name, '\\') >= 0 {
				return "", false
			}
			name = name[len("U&"):]
		}
		if len(name) < 2 {
			return "", false
		}
		quote := name[:1]
		name = name[1 : len(name)-1]
		if quote != "[" && strings.Contains(name, quote) {
			name = strings.ReplaceAll(name, quote+quote, quote)
		}
	}
	switch {
	case f == MySQL:
		name = strings.ToLower(name)
	case f == SQLite || !quoted:
		name = lowerASCII(name)
	}
	if f == Postgres && len(name) > postgresName {
		n := postgresName
		for n > 0 && !utf8.RuneStart(name[n]) {
			n--
		}
		name = name[:n]
	}
	return name, true
}

// lowerASCII keeps letters beyond ASCII, as PostgreSQL and SQLite do.
func lowerASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, s)
}

// create reads CREATE up to the kind of object.
func (p *parser) create() Class {
	f := p.lex.flavor
	p.step()
	temporary := p.createOptions()
	object := p.tok.kw
	switch object {
	case "PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "PACKAGE":
		// Its body is not run now.
		p.body, p.inert = true, true
	}
	if !p.atEnd() {
		p.step()
	}
	// IF NOT EXISTS temp.name
	for p.tok.kw == "IF" || p.tok.kw == "NOT" || p.tok.kw == "EXISTS" {
		p.step()
	}
	if k := p.tok.kw; k == "TEMP" && f == SQLite || k == "PG_TEMP" && f == Postgres {
		p.step()
		temporary = temporary || p.tok.char == '.'
	}
	if temporary {
		// MariaDB commits even for a temporary sequence.
		return Class{Kind: Session, Pins: true, ImplicitCommit: f == MySQL && object == "SEQUENCE"}
	}
	return Class{Kind: DDL, ImplicitCommit: f == MySQL}
}

// createOptions skips the words between CREATE and the kind of object, and reports whether
// TEMPORARY is among them.
func (p *parser) createOptions() (temporary bool) {
	for !p.atEnd() {
		switch t := p.tok; {
		case t.kw == "TEMP" || t.kw == "TEMPORARY":
			temporary = true
		case t.char == '=':
			// OPTION = value
			p.step()
		case t.typ == tokUserVar, t.char == '(', t.char == ')':
			// DEFINER = 'user'@'host' or CURRENT_USER()
		default:
			if option, _ := find(options, p.textOf(t)); !option || t.typ != tokWord {
				return temporary
			}
		}
		p.step()
	}
	return temporary
}

// options are the possible words between CREATE and the kind of object.
var options = map[string]bool{
	"OR": true, "REPLACE": true, "ALGORITHM": true, "DEFINER": true, "SQL": true, "SECURITY": true,
	"INVOKER": true, "AGGREGATE": true, "GLOBAL": true, "LOCAL": true, "CONSTRAINT": true,
	"UNLOGGED": true, "RECURSIVE": true, "VIRTUAL": true,
}

func (p *parser) drop() Class {
	mysql := p.lex.flavor == MySQL
	p.step()
	if mysql && (p.tok.kw == "TEMPORARY" || p.tok.kw == "PREPARE") {
		return Class{Kind: Session, Pins: true}
	}
	return Class{Kind: DDL, ImplicitCommit: mysql}
}

func (p *parser) alter() Class {
	f := p.lex.flavor
	p.step()
	if f == ANSI && p.tok.kw == "SESSION" {
		return Class{Kind: Session, Pins: true}
	}
	if f == MySQL {
		// ALTER EVENT … DO BEGIN … END
		p.createOptions()
		p.body = p.tok.kw == "EVENT"
		p.inert = p.body
	}
	return Class{Kind: DDL, ImplicitCommit: f == MySQL}
}

// flush is MySQL's. WITH READ LOCK and FOR EXPORT hold locks for the session.
func (p *parser) flush() Class {
	p.step()
	c := Class{Kind: DDL, ImplicitCommit: true}
	for !p.atEnd() {
		if p.tok.kw == "LOCK" || p.tok.kw == "EXPORT" {
			c.Pins = true
		}
		p.step()
	}
	return c
}

// explain distinguishes the EXPLAIN that runs its statement from the one that does not.
func (p *parser) explain() Class {
	f := p.lex.flavor
	p.step()
	runs := false
	c := Class{Kind: Read}
	switch f {
	case MySQL:
	options:
		for {
			switch p.tok.kw {
			case "ANALYZE":
				runs = true
			case "EXTENDED", "PARTITIONS":
			case "FORMAT":
				p.format()
				continue
			case "INTO": // EXPLAIN FORMAT=JSON INTO @v
				c.Pins = true
				p.step()
			default:
				break options
			}
			p.step()
		}
	case Postgres, ANSI:
		switch {
		case p.tok.char == '(':
			runs = p.explainOptions()
		case p.tok.kw == "ANALYZE" || p.tok.kw == "ANALYSE":
			runs = true
			p.step()
		}
		p.skip("VERBOSE")
	}
	if !runs {
		p.inert = true
		return c
	}
	inner := p.inner()
	inner.Pins = inner.Pins || c.Pins
	return inner
}

// format steps over FORMAT = name.
func (p *parser) format() {
	p.step()
	if p.tok.char == '=' {
		p.step()
	}
	if !p.atEnd() {
		p.step()
	}
}

// explainOptions reads (ANALYZE [value], …) if present, and reports whether the statement
// will be run. The last value counts.
func (p *parser) explainOptions() bool {
	ahead := p.lex
	switch first := ahead.next(); {
	case first.kw.isQuery(), first.kw == "WITH", first.char == '(':
		return false
	}
	runs := false
	outside := p.depth
	p.step()
	for !p.atEnd() && p.depth > outside {
		if k := p.tok.kw; k != "ANALYZE" && k != "ANALYSE" {
			p.step()
			continue
		}
		p.step()
		value := p.textOf(p.tok)
		if n := len(value); p.tok.typ == tokString && n > 1 && value[0] == value[n-1] {
			value = value[1 : n-1]
		}
		off, _ := find(offs, value)
		runs = !off
	}
	return runs
}

// offs are the constants that turn an option off.
var offs = map[string]bool{"0": true, "OFF": true, "FALSE": true}

// analyze is statistics everywhere, and MariaDB's EXPLAIN that runs.
func (p *parser) analyze() Class {
	p.step()
	if p.lex.flavor != MySQL {
		return Class{Kind: DDL}
	}
	if p.tok.kw == "FORMAT" {
		p.format()
	}
	switch kw := p.tok.kw; {
	case kw.isDML(MySQL), kw.isQuery() && kw != "TABLE", kw == "WITH", p.tok.char == '(':
		return p.inner()
	}
	return Class{Kind: DDL, ImplicitCommit: true}
}
