package sqltext

import (
	"strings"
	"unicode/utf8"
)

func (p *parser) begin() Class {
	f := p.lex.flavor
	p.step()
	if f == Postgres || f == SQLite || p.atEnd() {
		return Class{Kind: Begin, ImplicitCommit: f == MySQL}
	}
	switch p.tok.kw {
	case kwWork:
		return Class{Kind: Begin, ImplicitCommit: f == MySQL}
	case kwTran, kwTransaction, kwIsolation, kwRead, kwDeferred, kwImmediate, kwExclusive, kwConcurrent:
		if f == ANSI {
			return Class{Kind: Begin}
		}
	}
	// A compound statement: BEGIN NOT ATOMIC … END.
	p.body = true
	p.push(false)
	return Class{Kind: Opaque}
}

func (p *parser) start() Class {
	p.step()
	if p.tok.kw == kwTransaction && p.lex.flavor != SQLite {
		return Class{Kind: Begin, ImplicitCommit: p.lex.flavor == MySQL}
	}
	return Class{Kind: Opaque}
}

// commit reads the words behind a COMMIT, or behind another word for it or
// for ROLLBACK.
func (p *parser) commit(k Kind) Class {
	p.step()
	if p.tok.kw == kwPrepared {
		return Class{Kind: Opaque}
	}
	p.work()
	return p.chain(k)
}

func (p *parser) work() {
	switch p.tok.kw {
	case kwWork, kwTransaction, kwTran:
		p.step()
	}
}

// chain reads [AND [NO] CHAIN].
func (p *parser) chain(k Kind) Class {
	c := Class{Kind: k}
	if p.skip(kwAnd) {
		c.Chain = p.tok.kw == kwChain
	}
	return c
}

func (p *parser) rollback() Class {
	p.step()
	if p.tok.kw == kwPrepared {
		return Class{Kind: Opaque}
	}
	named := p.tok.kw == kwTransaction && p.lex.flavor == SQLite
	p.work()
	if named && p.tok.kw != kwTo && !p.atEnd() {
		// SQLite takes a name here and ignores it.
		p.step()
	}
	if p.skip(kwTo) {
		return p.named(RollbackTo)
	}
	return p.chain(Rollback)
}

// named reads [SAVEPOINT] name.
func (p *parser) named(k Kind) Class {
	t := p.tok
	if t.kw == kwSavepoint && k != Savepoint {
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

// postgresName is how many bytes of a name PostgreSQL keeps.
const postgresName = 63

// fold gives an identifier the form under which the database compares it. It
// is not ok for one that is not spelled out.
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
	switch f {
	case MySQL:
		return strings.ToLower(name), true
	case SQLite:
		return lowerASCII(name), true
	case Postgres:
		if !quoted {
			name = lowerASCII(name)
		}
		if len(name) > postgresName {
			n := postgresName
			for n > 0 && !utf8.RuneStart(name[n]) {
				n--
			}
			name = name[:n]
		}
		return name, true
	}
	if !quoted {
		name = lowerASCII(name)
	}
	return name, true
}

// lowerASCII leaves letters beyond ASCII alone, as PostgreSQL and SQLite do.
func lowerASCII(s string) string {
	for i := range len(s) {
		if c := s[i]; 'A' <= c && c <= 'Z' {
			b := []byte(s)
			for ; i < len(b); i++ {
				if c := b[i]; 'A' <= c && c <= 'Z' {
					b[i] = c + 'a' - 'A'
				}
			}
			return string(b)
		}
	}
	return s
}
