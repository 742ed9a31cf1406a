package sqltext

func (p *parser) set() Class {
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

func (p *parser) setMySQL() Class {
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
func (p *parser) assignment(c *Class, global *bool) {
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
	if c.Pins = true; lookup(p.nameOf(p.tok)) == "AUTOCOMMIT" {
		c.Kind = Control
	}
}

func (p *parser) resetStatement() Class {
	p.step()
	if p.lex.flavor == MySQL {
		return Class{Kind: DDL, ImplicitCommit: p.tok.kw != "PERSIST"}
	}
	return Class{Kind: Session, Pins: true}
}

func (p *parser) lock() Class {
	p.step()
	if p.lex.flavor == Postgres {
		// Held to the end of the transaction.
		return Class{Kind: Session}
	}
	tables := p.tok.kw == "TABLE" || p.tok.kw == "TABLES"
	return Class{Kind: Session, Pins: true, ImplicitCommit: tables && p.lex.flavor == MySQL}
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

func (p *parser) pragma() Class {
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
