package sqltext

// explain tells the EXPLAIN that runs its statement from the one that does not.
func (p *parser) explain() Class {
	f := p.lex.flavor
	p.step()
	runs := false
	c := Class{Kind: Read}
	switch f {
	case MySQL:
		for {
			switch p.tok.kw {
			case kwAnalyze:
				runs = true
				p.step()
				continue
			case kwExtended, kwPartitions:
				p.step()
				continue
			case kwFormat:
				p.format()
				continue
			case kwInto: // EXPLAIN FORMAT=JSON INTO @v
				c.Pins = true
				p.step()
				p.step()
				continue
			}
			break
		}
	case Postgres, ANSI:
		switch {
		case p.tok.char == '(':
			runs = p.explainOptions()
		case p.tok.kw == kwAnalyze || p.tok.kw == kwAnalyse:
			runs = true
			p.step()
		}
		p.skip(kwVerbose)
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

// explainOptions reads (ANALYZE [value], …) if it stands here, and reports
// whether the statement will be run. The last value given counts.
func (p *parser) explainOptions() bool {
	ahead := p.lex
	switch first := ahead.next(); {
	case first.kw.isQuery(), first.kw == kwWith, first.char == '(':
		return false
	}
	runs := false
	outside := p.depth
	p.step()
	for !p.atEnd() && p.depth > outside {
		if k := p.tok.kw; k != kwAnalyze && k != kwAnalyse {
			p.step()
			continue
		}
		p.step()
		runs = !p.isFalse()
	}
	return runs
}

// isFalse reports whether the current token is a constant for false.
func (p *parser) isFalse() bool {
	on, known := p.constant(p.tok)
	return known && !on
}

// constant reads t as a switch.
func (p *parser) constant(t token) (on, known bool) {
	s := p.textOf(t)
	switch t.typ {
	case tokString:
		if len(s) < 2 || s[0] != s[len(s)-1] {
			return false, false
		}
		s = s[1 : len(s)-1]
	case tokWord, tokValue:
	default:
		return false, false
	}
	if len(s) > maxWord {
		return false, false
	}
	var buf [maxWord]byte
	switch string(upper(&buf, s)) {
	case "0", "OFF", "FALSE":
		return false, true
	case "1", "ON", "TRUE":
		return true, true
	}
	return false, false
}

// analyze is statistics everywhere, and MariaDB's EXPLAIN that runs.
func (p *parser) analyze() Class {
	p.step()
	if p.lex.flavor != MySQL {
		return Class{Kind: DDL}
	}
	if p.tok.kw == kwFormat {
		p.format()
	}
	switch kw := p.tok.kw; {
	case kw.isDML(MySQL), kw.isQuery() && kw != kwTable, kw == kwWith, p.tok.char == '(':
		return p.inner()
	}
	return Class{Kind: DDL, ImplicitCommit: true}
}
