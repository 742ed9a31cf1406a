package sqltext

func (p *reader) set() Class {
	p.step()
	switch p.lex.flavor {
	case MySQL:
		return p.setMySQL()
	case Postgres:
		if p.tok.kw == "LOCAL" {
			return Class{Kind: Session}
		}
	}
	return Class{Kind: Session, Pins: p.tok.kw != "CONSTRAINTS" && p.tok.kw != "TRANSACTION"}
}

func (p *reader) setMySQL() Class {
	switch p.tok.kw {
	case "STATEMENT":
		// SET STATEMENT a=b, … FOR statement
		for !p.atEnd() && (p.tok.kw != "FOR" || p.depth > 0) {
			p.step()
		}
		if !p.skip("FOR") {
			return Class{Kind: Session, Pins: true}
		}
		p.fx = 0
		return p.inner()
	case "PASSWORD", "DEFAULT": // SET DEFAULT ROLE
		return Class{Kind: DDL, ImplicitCommit: true}
	case "TRANSACTION":
		return Class{Kind: Session}
	}
	c := Class{Kind: Session}
	global := false
	for {
		p.assignment(&c, &global)
		for !p.atEnd() && (p.tok.char != ',' || p.depth > 0) {
			p.step()
		}
		if p.atEnd() {
			return c
		}
		p.step()
	}
}

// assignment reads one assignment of MySQL's SET, at least up to its value, and adds its
// effect to c. A scope holds for the following assignments too.
func (p *reader) assignment(c *Class, global *bool) {
	here := *global
	switch p.tok.typ {
	case tokUserVar:
		c.Pins = true
		return
	case tokSysVar:
		p.step()
		here = false
		if ahead := p.lex; ahead.next().char == '.' {
			switch p.tok.kw {
			case "GLOBAL", "PERSIST", "PERSIST_ONLY":
				here = true
				p.step()
				p.step()
			case "SESSION", "LOCAL":
				p.step()
				p.step()
			}
		}
	default:
		switch p.tok.kw {
		case "GLOBAL", "PERSIST", "PERSIST_ONLY":
			*global, here = true, true
			p.step()
		case "SESSION", "LOCAL":
			*global, here = false, false
			p.step()
		}
	}
	if here {
		return
	}
	if c.Pins = true; p.isAutocommit(p.tok) {
		c.Kind = Control
	}
}

func (p *reader) isAutocommit(t token) bool {
	if t.typ == tokIdent && t.end-t.start > 2 {
		return lookup(p.lex.text[t.start+1:t.end-1]) == "AUTOCOMMIT"
	}
	return t.kw == "AUTOCOMMIT"
}

func (p *reader) resetStatement() Class {
	p.step()
	switch p.lex.flavor {
	case SQLite:
		return Class{Kind: Opaque}
	case MySQL:
		return Class{Kind: DDL, ImplicitCommit: p.tok.kw != "PERSIST"}
	}
	return Class{Kind: Session, Pins: true}
}

func (p *reader) lock() Class {
	p.step()
	switch p.lex.flavor {
	case SQLite:
		return Class{Kind: Opaque}
	case Postgres:
		// Held to the end of the transaction.
		return Class{Kind: Session}
	case MySQL:
		tables := p.tok.kw == "TABLE" || p.tok.kw == "TABLES"
		return Class{Kind: Session, Pins: true, ImplicitCommit: tables}
	}
	return Class{Kind: Session, Pins: true}
}

// pragmas are the pragmas of SQLite that never change the connection; DDL for those that
// write to the file.
var pragmas = map[string]Kind{
	"COLLATION_LIST": Read, "COMPILE_OPTIONS": Read, "DATABASE_LIST": Read, "DATA_VERSION": Read,
	"FOREIGN_KEY_CHECK": Read, "FOREIGN_KEY_LIST": Read, "FREELIST_COUNT": Read,
	"FUNCTION_LIST": Read, "INDEX_INFO": Read, "INDEX_LIST": Read, "INDEX_XINFO": Read,
	"INTEGRITY_CHECK": Read, "MODULE_LIST": Read, "PAGE_COUNT": Read, "PRAGMA_LIST": Read,
	"QUICK_CHECK": Read, "SHRINK_MEMORY": Read, "STATS": Read, "TABLE_INFO": Read,
	"TABLE_LIST": Read, "TABLE_XINFO": Read, "WAL_CHECKPOINT": Read,
	"APPLICATION_ID": DDL, "INCREMENTAL_VACUUM": DDL, "OPTIMIZE": DDL, "USER_VERSION": DDL,
}

func (p *reader) pragma() Class {
	p.step()
	name := p.tok
	p.step()
	if p.tok.char == '.' {
		p.step()
		name = p.tok
		p.step()
	}
	kind, known := find(pragmas, p.textOf(name))
	switch {
	case p.tok.char != '=' && p.tok.char != '(':
		return Class{Kind: Read}
	case known:
		return Class{Kind: kind}
	}
	return Class{Kind: Session, Pins: true}
}
