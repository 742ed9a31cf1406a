package sqltext

// create reads CREATE up to the kind of object.
func (p *parser) create() Class {
	f := p.lex.flavor
	p.step()
	temporary := p.createOptions()
	object := p.tok.kw
	switch object {
	case kwProcedure, kwFunction, kwTrigger, kwEvent, kwPackage:
		// Its body is not run now.
		p.body, p.inert = true, true
	}
	if !p.atEnd() {
		p.step()
	}
	// IF NOT EXISTS temp.name
	for p.tok.kw == kwIf || p.tok.kw == kwNot || p.tok.kw == kwExists {
		p.step()
	}
	if k := p.tok.kw; k == kwTemp && f == SQLite || k == kwPgTemp && f == Postgres {
		p.step()
		temporary = temporary || p.tok.char == '.'
	}
	if temporary {
		// MariaDB commits for a temporary sequence all the same.
		return Class{Kind: Session, Pins: true, ImplicitCommit: f == MySQL && object == kwSequence}
	}
	return Class{Kind: DDL, ImplicitCommit: f == MySQL}
}

// createOptions steps over what stands between CREATE and the kind of object,
// and reports whether that says TEMPORARY.
func (p *parser) createOptions() (temporary bool) {
	for !p.atEnd() {
		switch t := p.tok; {
		case t.kw == kwTemp || t.kw == kwTemporary:
			temporary = true
		case t.char == '=':
			// OPTION = value
			p.step()
		case t.typ == tokUserVar, t.char == '(', t.char == ')':
			// DEFINER = 'user'@'host' or CURRENT_USER()
		case t.typ == tokWord && isOption(p.textOf(t)):
		default:
			return temporary
		}
		p.step()
	}
	return temporary
}

// options stand between CREATE and the kind of object.
var options = map[string]bool{
	"OR": true, "REPLACE": true, "ALGORITHM": true, "DEFINER": true, "SQL": true, "SECURITY": true,
	"INVOKER": true, "AGGREGATE": true, "GLOBAL": true, "LOCAL": true, "CONSTRAINT": true,
	"UNLOGGED": true, "RECURSIVE": true, "VIRTUAL": true,
}

func isOption(word string) bool {
	if len(word) > maxWord {
		return false
	}
	var buf [maxWord]byte
	return options[string(upper(&buf, word))]
}

func (p *parser) drop() Class {
	mysql := p.lex.flavor == MySQL
	p.step()
	if mysql && (p.tok.kw == kwTemporary || p.tok.kw == kwPrepare) {
		return Class{Kind: Session, Pins: true}
	}
	return Class{Kind: DDL, ImplicitCommit: mysql}
}

func (p *parser) alter() Class {
	f := p.lex.flavor
	p.step()
	if f == ANSI && p.tok.kw == kwSession {
		return Class{Kind: Session, Pins: true}
	}
	if f == MySQL {
		// ALTER EVENT … DO BEGIN … END
		p.createOptions()
		p.body = p.tok.kw == kwEvent
		p.inert = p.body
	}
	return Class{Kind: DDL, ImplicitCommit: f == MySQL}
}

// flush is MySQL's. WITH READ LOCK and FOR EXPORT hold locks for the session.
func (p *parser) flush() Class {
	p.step()
	if p.lex.flavor != MySQL {
		return Class{Kind: Opaque}
	}
	c := Class{Kind: DDL, ImplicitCommit: true}
	for !p.atEnd() {
		if p.tok.kw == kwLock || p.tok.kw == kwExport {
			c.Pins = true
		}
		p.step()
	}
	return c
}
