package sqltext

// effects are the effects of a statement beyond its first word.
type effects uint16

const (
	// fxPins leaves state behind in the session.
	fxPins effects = 1 << iota
	// fxReads reads the session's state.
	fxReads
	// fxDML writes rows in a main statement or within a WITH.
	fxDML
	// fxInsert may generate an id in one of these.
	fxInsert
	// fxTable and fxTempTable are SELECT … INTO a new table.
	fxTable
	fxTempTable
	// fxFile is SELECT … INTO OUTFILE.
	fxFile
	// fxQuery marks a query as the main statement after a WITH.
	fxQuery
	// fxLocks locks rows that are only read.
	fxLocks
	// fxMoves changes a setting for the rest of the transaction.
	fxMoves
)

// level is the state of a WITH within one pair of parentheses.
type level uint8

const (
	levelPlain  level = iota
	levelBody         // right after the ( of a WITH query
	levelName         // a WITH query's name comes next
	levelNamed        // after the name, before AS
	levelAs           // after AS
	levelAfter        // after the body: a comma, or the main statement
	levelSearch       // in a SEARCH or CYCLE clause, before its SET
)

// maxLevels is the maximum depth for following WITH.
const maxLevels = 64

// parser walks through the tokens of a text, statement by statement.
type parser struct {
	lex lexer
	tok token

	// All fields below belong to the current statement.

	// prev holds the tokens before tok, the nearest first.
	prev [4]token
	// depth counts open parentheses.
	depth int
	// main is the depth of the main statement.
	main   int
	levels [maxLevels]level
	fx     effects
	// inert is set if the statement does not run its inner code, whose effects do not count.
	inert bool
	// config is the depth within an open set_config(…), else 0.
	config int
	// body is set while BEGIN, CASE, IF … open blocks with semicolons inside the statement.
	body   bool
	blocks int
	// expression has a bit set for each open block that is a CASE expression.
	expression uint64
	// nested counts the outer statements that run this one.
	nested int
	// write is the current write, hazards belong to all writes so far, and conditions has a bit
	// for each depth with an open condition.
	write write
	// verb is the last write's.
	verb       keyword
	hazards    Hazards
	conditions uint64
}

// reset begins the next statement.
func (p *parser) reset() {
	*p = parser{lex: p.lex, tok: p.tok}
}

// atEnd reports whether the statement is over.
func (p *parser) atEnd() bool {
	return p.tok.typ == tokEOF || p.tok.char == ';' && p.depth == 0 && p.blocks == 0
}

// rest walks to the end of the statement.
func (p *parser) rest() {
	for !p.atEnd() {
		p.step()
	}
}

// skip steps over the current token if it is the keyword k.
func (p *parser) skip(k keyword) bool {
	if p.tok.kw != k {
		return false
	}
	p.step()
	return true
}

func (p *parser) textOf(t token) string { return p.lex.text[t.start:t.end] }

// nameOf returns an identifier without its quotes, empty for other tokens. It does not
// resolve escapes (U&"\0061", a doubled quote).
func (p *parser) nameOf(t token) string {
	switch text := p.textOf(t); {
	case t.typ == tokWord:
		return text
	case t.typ == tokIdent && len(text) > 3 && (text[0] == 'U' || text[0] == 'u'):
		return text[3 : len(text)-1]
	case t.typ == tokIdent && len(text) > 2:
		return text[1 : len(text)-1]
	}
	return ""
}

// step reads the effects of the current token and moves to the next. It stays within the
// statement.
func (p *parser) step() {
	if p.atEnd() {
		return
	}
	t := p.tok
	if p.prev[0].kw == "INTO" {
		p.into(t)
	}
	p.watch(t)
	switch t.typ {
	case tokPunct:
		switch t.char {
		case '(':
			p.open()
		case ')':
			p.close()
		case ',':
			if p.level() == levelAfter {
				p.setLevel(levelName)
			}
		}
	case tokWord:
		if p.body {
			p.block(t.kw)
		}
		p.with(t.kw)
		p.note(t.kw)
	case tokIdent:
		p.with("")
		if p.lex.flavor == Postgres || p.lex.flavor == MySQL && (p.prev[0].typ == tokSysVar || p.prev[0].char == '.' && p.prev[2].typ == tokSysVar) {
			p.note(lookup(p.nameOf(t)))
		}
	case tokUserVar:
		p.fx |= fxReads
	case tokAssign:
		p.fx |= fxPins
	}
	p.prev = [4]token{t, p.prev[0], p.prev[1], p.prev[2]}
	p.tok = p.lex.next()
}

func (p *parser) level() level {
	if p.depth >= maxLevels {
		return levelPlain
	}
	return p.levels[p.depth]
}

func (p *parser) setLevel(l level) {
	if p.depth < maxLevels {
		p.levels[p.depth] = l
	}
}

func (p *parser) open() {
	inner := levelPlain
	switch p.level() {
	case levelAs:
		inner = levelBody
		p.setLevel(levelAfter)
	case levelBody:
		inner = levelBody
		p.setLevel(levelPlain)
	case levelAfter:
		// WITH … (SELECT …)
		p.mainVerb("SELECT")
	}
	p.depth++
	p.setLevel(inner)

	// A table may have a function's name: INSERT INTO changes (…).
	if p.prev[1].kw == "INTO" {
		return
	}
	switch lookupCall(p.lex.flavor, p.nameOf(p.prev[0])) {
	case callPins:
		p.fx |= fxPins
	case callReads:
		p.fx |= fxReads
	case callSetConfig:
		if p.config != 0 {
			p.fx |= fxPins
		} else {
			p.config = p.depth
		}
	}
}

func (p *parser) close() {
	if p.prev[0].char == '(' && lookupCall(p.lex.flavor, p.nameOf(p.prev[1])) == callReadsBare {
		p.fx |= fxReads
	}
	if p.config != 0 && p.config == p.depth {
		// With true as its last argument the setting ends with the transaction.
		if p.prev[0].kw != "TRUE" || p.prev[1].char != ',' {
			p.fx |= fxPins
		} else {
			p.fx |= fxMoves
		}
		p.config = 0
	}
	if p.depth > 0 {
		p.depth--
	}
}

// with follows the queries of a WITH to the statements in it and after it.
func (p *parser) with(kw keyword) {
	switch p.level() {
	case levelPlain, levelBody:
		body, opened := p.level() == levelBody, p.prev[0].char == '('
		p.setLevel(levelPlain)
		switch {
		case kw == "WITH" && (body || opened):
			p.setLevel(levelName)
		case kw.isDML(Postgres) && (body || opened && p.depth >= maxLevels):
			p.writes(kw)
		}
	case levelName:
		if kw != "RECURSIVE" || p.prev[0].kw != "WITH" {
			p.setLevel(levelNamed)
		}
	case levelNamed:
		if kw == "AS" {
			p.setLevel(levelAs)
		}
	case levelAfter:
		switch {
		case kw == "SEARCH" || kw == "CYCLE":
			p.setLevel(levelSearch)
		case kw.isDML(p.lex.flavor) || kw.isQuery():
			p.mainVerb(kw)
		}
	case levelSearch:
		if kw == "SET" {
			p.setLevel(levelAfter)
		}
	}
}

// mainVerb records the verb after the queries of a WITH.
func (p *parser) mainVerb(kw keyword) {
	p.setLevel(levelPlain)
	if !kw.isQuery() {
		p.writes(kw)
	} else if p.depth == p.main {
		p.fx |= fxQuery
	}
}

func (p *parser) writes(kw keyword) {
	p.fx |= fxDML
	p.verb = kw
	p.write = write{verb: kw, depth: p.depth, part: partTarget}
	switch kw {
	case "INSERT", "REPLACE", "MERGE": // they may generate an id
		p.fx |= fxInsert
	}
}

// note records the keywords that depend on the session or change it, and those that make a
// query lock its rows.
func (p *parser) note(kw keyword) {
	switch kw {
	case "UPDATE", "SHARE": // FOR UPDATE, FOR SHARE, LOCK IN SHARE MODE
		if p.lex.flavor == MySQL && (p.prev[0].kw == "FOR" || p.prev[1].kw == "LOCK") {
			p.fx |= fxLocks
		}
	case "OF": // WHERE CURRENT OF cursor
		if p.prev[0].kw == "CURRENT" {
			p.fx |= fxReads
		}
	case "VALUE": // PREVIOUS VALUE FOR sequence
		if p.prev[0].kw == "PREVIOUS" && p.lex.flavor == MySQL {
			p.fx |= fxReads
		}
	case "LAST_INSERT_ID", "IDENTITY", "INSERT_ID": // @@last_insert_id, @@session.identity
		if p.prev[0].typ == tokSysVar || p.prev[0].char == '.' && p.prev[2].typ == tokSysVar {
			p.fx |= fxReads
		}
	case "PG_SETTINGS": // UPDATE of this view is SET: https://www.postgresql.org/docs/current/view-pg-settings.html
		before := p.prev[0]
		if before.char == '.' {
			before = p.prev[2]
		}
		if before.kw == "UPDATE" || before.kw == "ONLY" {
			p.fx |= fxPins
		}
	}
}

// into finds the destination of a query's rows from t, the token after an INTO.
func (p *parser) into(t token) {
	switch p.prev[1].kw {
	case "INSERT", "REPLACE", "MERGE", "AS":
		return
	}
	if p.prev[1].char == '.' {
		return
	}
	switch p.lex.flavor {
	case MySQL:
		switch {
		case t.kw == "OUTFILE" || t.kw == "DUMPFILE":
			p.fx |= fxFile
		case t.typ == tokUserVar:
			p.fx |= fxPins
		}
	case Postgres, ANSI:
		if t.typ != tokWord && t.typ != tokIdent {
			return
		}
		p.fx |= fxTable
		if t.kw == "LOCAL" || t.kw == "GLOBAL" {
			// Skip the redundant word before a TEMP.
			ahead := p.lex
			t = ahead.next()
		}
		if t.kw == "TEMP" || t.kw == "TEMPORARY" || t.kw == "PG_TEMP" {
			p.fx |= fxTempTable
		}
	}
}

// block follows the blocks of a routine's body or a compound statement.
func (p *parser) block(kw keyword) {
	before := p.prev[0].kw
	if p.lex.flavor == Postgres {
		// Only a body in standard SQL is code, all others are strings.
		switch {
		case kw == "ATOMIC" && before == "BEGIN", kw == "CASE" && p.blocks > 0:
			p.blocks++
		case kw == "END" && p.blocks > 0:
			p.blocks--
		}
		return
	}
	switch kw {
	case "END":
		if p.blocks > 0 {
			p.blocks--
		}
	case "BEGIN":
		p.push(false)
	case "CASE":
		if before != "END" {
			p.push(!p.startsInner(true))
		}
	case "LOOP":
		if before != "END" && p.lex.flavor != SQLite {
			p.push(false)
		}
	case "IF", "WHILE", "REPEAT", "FOR":
		// IF and REPEAT are functions too, and IF EXISTS and FOR UPDATE are clauses.
		if before != "END" && p.lex.flavor != SQLite && p.startsInner(kw != "FOR") {
			p.push(false)
		}
	}
}

func (p *parser) push(expression bool) {
	if p.blocks < 64 {
		bit := uint64(1) << p.blocks
		p.expression &^= bit
		if expression {
			p.expression |= bit
		}
	}
	p.blocks++
}

// startsInner reports whether the current token begins a statement within a body. With head
// it may also be the body itself, after the routine's head.
func (p *parser) startsInner(head bool) bool {
	if 0 < p.blocks && p.blocks <= 64 && p.expression&(1<<(p.blocks-1)) != 0 {
		return false
	}
	t := p.prev[0]
	switch t.kw {
	case "BEGIN", "THEN", "ELSE", "DO", "LOOP", "REPEAT":
		return true
	case "ROW", "DATA", "SQL", "DETERMINISTIC", "DEFINER", "INVOKER":
		return head
	}
	return t.typ == tokEOF || t.char == ';' || t.char == ':' || head && (t.char == ')' || t.typ == tokString)
}
