package sqltext

import (
	"slices"
	"strings"
)

// Classify reads text like a database of flavor f and returns its class. It never fails: an
// unreadable text is Opaque. It is pure and safe for concurrent use. It allocates only to
// fold a savepoint's name; Class.Name may share text's memory.
func Classify(f Flavor, text string) Class { return ClassifyAs(f, 0, text) }

// classify is Classify and also checks how other sessions read the text.
func classify(f Flavor, text string) Class {
	c := Classify(f, text)
	c.ByQuoting = slices.ContainsFunc(quotings(f, text), func(q Quoting) bool { return ClassifyAs(f, q, text) != c })
	return c
}

// quotings returns the quotings under which text may read differently from the default.
func quotings(f Flavor, text string) []Quoting {
	switch {
	case f == Postgres && strings.IndexByte(text, '\\') >= 0:
		return []Quoting{BackslashEscapes}
	case f == MySQL && strings.IndexByte(text, '\\') >= 0:
		return []Quoting{BackslashIsPlain, QuotesAreNames, BackslashIsPlain | QuotesAreNames}
	case f == MySQL && strings.IndexByte(text, '"') >= 0:
		return []Quoting{QuotesAreNames}
	}
	return nil
}

// ClassifyAs is [Classify] for a session with a known quoting.
func ClassifyAs(f Flavor, q Quoting, text string) Class {
	if !f.IsSQL() {
		if f.write(text) {
			return Class{Kind: DML}
		}
		return Class{Kind: Opaque}
	}
	p := parser{lex: lexer{text: text, flavor: f, quoting: q}}
	return p.whole()
}

// whole reads the text from its beginning to its end.
func (p *parser) whole() Class {
	p.tok = p.lex.next()
	all := Class{Kind: Empty}
	for {
		p.reset()
		c := p.statement()
		switch {
		case c.Kind == Empty:
		case all.Kind == Empty:
			all = c
		default:
			all = join(all, c)
		}
		if p.tok.typ == tokEOF {
			return all.unlessBroken(p.lex.executable > 0)
		}
		p.tok = p.lex.next()
	}
}

// Verb returns the verb of a DML, such as INSERT, by the default quoting; else "".
func Verb(f Flavor, text string) string {
	p := parser{lex: lexer{text: text, flavor: f}}
	p.tok = p.lex.next()
	if p.statement().Kind != DML {
		return ""
	}
	return string(p.verb)
}

// AsWrite is for a text without a session to query. It reads text by the first quoting, the
// default before the others, that makes it one DML. ok is false without such a quoting.
func AsWrite(f Flavor, text string) (c Class, ok bool) {
	for _, q := range append([]Quoting{0}, quotings(f, text)...) {
		if c = ClassifyAs(f, q, text); c.Kind == DML {
			return c, true
		}
	}
	return Class{}, false
}

// join makes a Multi of a and b; a may be one already.
func join(a, b Class) Class {
	m := Class{Kind: Multi}
	for _, c := range [...]Class{a, b} {
		m.ImplicitCommit = m.ImplicitCommit || c.ImplicitCommit
		m.Pins = m.Pins || c.Pins
		switch c.Kind {
		case Read, DDL:
		case DML:
			m.HasDML = true
		case Multi:
			m.HasDML = m.HasDML || c.HasDML
		default:
			m.Pins = true
		}
	}
	return m
}

// statement reads one statement up to its semicolon or the end of the text.
func (p *parser) statement() Class {
	for p.tok.char == '(' {
		p.step()
	}
	if p.atEnd() && p.depth == 0 {
		if p.lex.broken && p.tok.typ == tokEOF {
			return Class{Kind: Opaque}
		}
		return Class{Kind: Empty}
	}
	parenthesised := p.depth > 0
	c := p.head()
	p.rest()
	if parenthesised && c.Kind != Read && c.Kind != DML {
		// Parentheses may hold queries only.
		return Class{Kind: Opaque}
	}
	c = p.finish(c)
	if p.watch(p.tok); c.Kind == DML && !p.lex.broken && p.depth == 0 {
		p.endWrite()
		c.Hazards = p.hazards
	}
	return c
}

// finish adds the effects of the rest to c, the class by the first words.
func (p *parser) finish(c Class) Class {
	if p.config != 0 {
		p.fx |= fxPins
	}
	if p.inert {
		p.fx = 0
	}
	if c.Kind == Read {
		switch {
		case p.fx&(fxTable|fxTempTable) != 0 && p.fx&fxDML != 0, p.fx&fxFile != 0:
			c.Kind = Opaque
		case p.fx&fxTempTable != 0:
			c.Kind = Session
			c.Pins = true
		case p.fx&fxTable != 0:
			c.Kind = DDL
		case p.fx&fxDML != 0:
			c.Kind = DML
		}
	}
	switch c.Kind {
	case DML:
		c.Insert = p.fx&fxInsert != 0
		c.NeedsSession = p.fx&(fxPins|fxReads) != 0
		fallthrough
	case Read, DDL, Opaque:
		c.Pins = c.Pins || p.fx&fxPins != 0
	}
	c.Moves = p.fx&fxMoves != 0
	c.Locks = c.Kind == Read && p.fx&fxLocks != 0
	return c.unlessBroken(p.lex.broken && p.tok.typ == tokEOF)
}

// unlessBroken returns c, or the rest of c after an unterminated quote or comment.
func (c Class) unlessBroken(broken bool) Class {
	if broken {
		switch c.Kind {
		case DML, DDL, Session:
			// The database will report the mistake.
		case Multi:
			c.Pins = true
		default:
			return Class{Kind: Opaque, Pins: c.Pins}
		}
	}
	return c
}

// beginsIn lists the flavors of a first word. Other words may begin a statement in all flavors.
var beginsIn = map[keyword][]Flavor{
	"TABLE": {ANSI, MySQL, Postgres}, "SHOW": {ANSI, MySQL, Postgres}, "SET": {ANSI, MySQL, Postgres},
	"LOCK": {ANSI, MySQL, Postgres}, "RESET": {ANSI, MySQL, Postgres}, "FLUSH": {MySQL},
	"FETCH": {ANSI, Postgres}, "MOVE": {ANSI, Postgres}, "CLOSE": {ANSI, Postgres},
	"DISCARD": {ANSI, Postgres}, "DECLARE": {ANSI, Postgres}, "ABORT": {Postgres}, "END": {Postgres, SQLite},
	"DESC": {ANSI, MySQL}, "DESCRIBE": {ANSI, MySQL}, "USE": {ANSI, MySQL}, "HANDLER": {ANSI, MySQL},
	"GET": {ANSI, MySQL}, "UNLOCK": {ANSI, MySQL}, "HELP": {MySQL}, "CHECKSUM": {MySQL},
	"PRAGMA": {SQLite}, "ATTACH": {SQLite}, "DETACH": {SQLite},
}

// head reads the first words of a statement, at least one token.
func (p *parser) head() Class {
	f, kw := p.lex.flavor, p.tok.kw
	mysql := f == MySQL
	if kw.isDML(f) {
		p.writes(kw)
		p.step()
		return Class{Kind: DML}
	}
	if in, some := beginsIn[kw]; some && !slices.Contains(in, f) {
		return p.simple(Class{Kind: Opaque})
	}
	switch kw {
	case "SELECT", "VALUES", "TABLE", "SHOW", "FETCH", "MOVE", "HELP", "CHECKSUM":
		return p.simple(Class{Kind: Read})
	case "WITH":
		return p.withHead()
	case "EXPLAIN", "DESC", "DESCRIBE":
		return p.explain()
	case "ANALYZE", "ANALYSE":
		return p.analyze()

	case "BEGIN":
		return p.begin()
	case "START":
		return p.start()
	case "COMMIT", "END":
		return p.commit(Control)
	case "ABORT":
		return p.commit(Rollback)
	case "ROLLBACK":
		return p.rollback()
	case "SAVEPOINT":
		p.step()
		return p.named(Savepoint)
	case "RELEASE":
		p.step()
		return p.named(ReleaseSavepoint)

	case "SET":
		return p.set()
	case "RESET":
		return p.resetStatement()
	case "PRAGMA":
		return p.pragma()
	case "LOCK":
		return p.lock()
	case "USE", "HANDLER", "GET", "UNLOCK", "ATTACH", "DETACH", "DISCARD", "DECLARE":
		return p.simple(Class{Kind: Session, Pins: true})
	case "CLOSE":
		return p.simple(Class{Kind: Session})
	case "PREPARE":
		p.step()
		if p.tok.kw == "TRANSACTION" && f == Postgres {
			return p.simple(Class{Kind: Control})
		}
		return p.prepared()
	case "EXECUTE":
		p.step()
		if p.tok.kw == "IMMEDIATE" {
			return Class{Kind: Opaque, Pins: true}
		}
		return p.prepared()
	case "DEALLOCATE":
		p.step()
		return p.prepared()
	case "XA":
		return p.simple(Class{Kind: Opaque, Pins: mysql})
	case "BACKUP", "INSTALL", "UNINSTALL":
		return p.simple(Class{Kind: Opaque, Pins: mysql && kw == "BACKUP", ImplicitCommit: mysql})
	case "LOAD":
		// PostgreSQL loads a library into the session.
		return p.simple(Class{Kind: Opaque, Pins: f == Postgres})

	case "CREATE":
		return p.create()
	case "DROP":
		return p.drop()
	case "ALTER":
		return p.alter()
	case "TRUNCATE", "RENAME", "GRANT", "REVOKE", "OPTIMIZE", "REPAIR", "CHECK":
		return p.simple(Class{Kind: DDL, ImplicitCommit: mysql})
	case "FLUSH":
		return p.flush()
	case "COMMENT", "VACUUM", "REINDEX", "CLUSTER", "REFRESH", "REASSIGN", "SECURITY", "CHECKPOINT", "PURGE":
		return p.simple(Class{Kind: DDL})

	case "IF", "CASE", "LOOP", "WHILE", "REPEAT", "FOR":
		// MariaDB's compound statements outside routines.
		p.body = mysql
	}
	return p.simple(Class{Kind: Opaque})
}

// simple is for a statement whose class needs no more reading.
func (p *parser) simple(c Class) Class {
	p.step()
	return c
}

// inner reads the statement that the preceding words run.
func (p *parser) inner() Class {
	if p.nested++; p.nested > 4 {
		return Class{Kind: Opaque}
	}
	for p.tok.char == '(' {
		p.step()
	}
	if p.atEnd() {
		return Class{Kind: Opaque}
	}
	return p.head()
}

func (p *parser) withHead() Class {
	p.main = p.depth
	p.step()
	p.setLevel(levelName)
	p.rest()
	if p.fx&(fxDML|fxQuery) == 0 {
		return Class{Kind: Opaque}
	}
	return Class{Kind: Read}
}

// prepared is for the statements about prepared statements.
func (p *parser) prepared() Class {
	if p.lex.flavor == SQLite {
		return Class{Kind: Opaque}
	}
	// The prepared statement does not run now. The executed one is unknown, and may be
	// anything.
	p.inert = true
	return Class{Kind: Session, Pins: true}
}

// OneWrite classifies a text that may be forged. It returns DML only if every server runs
// text as one DML in a session with quoting q, however it treats /*!version … */. A message
// is DML.
func OneWrite(f Flavor, q Quoting, text string) Kind {
	kind := ClassifyAs(f, q, text).Kind
	if kind != DML || f != MySQL || !strings.Contains(text, "/*!") && !strings.Contains(text, "/*M!") {
		return kind
	}
	run := lexer{text: text, flavor: f, quoting: q}
	skipped := run
	skipped.skipExecutable = true
	rest := parser{lex: skipped}
	// Servers run some of these parts and skip others. A keyword outside of them is the same
	// for all.
	if a, b := run.next(), skipped.next(); a != b || !a.kw.isDML(f) {
		return Opaque
	}
	return rest.whole().Kind
}

// IsOneWrite is OneWrite under every quoting. sure is false if the quoting decides.
func IsOneWrite(f Flavor, text string) (kind Kind, sure bool) {
	kind = OneWrite(f, 0, text)
	return kind, !slices.ContainsFunc(quotings(f, text), func(q Quoting) bool { return (OneWrite(f, q, text) == DML) != (kind == DML) })
}
