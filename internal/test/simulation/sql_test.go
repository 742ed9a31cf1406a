package simulation

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/sqltext"
)

// This file reads as much SQL as bed sends of its own and the writers use.

var (
	comment = regexp.MustCompile(`'(?:[^']|'')*'|/\*.*?\*/|--[^\n]*`) // or what is none: a text
	token   = regexp.MustCompile("`[^`]*`(?:\\.[A-Za-z_][A-Za-z0-9_]*)*|'(?:[^']|'')*'|@@[a-z_.]+|[A-Za-z_][A-Za-z0-9_.]*|[0-9]+|<=|>=|<>|[-+*/=<>(),?]")
)

// parser reads one statement and evaluates its expressions on the way.
type parser struct {
	s      *session
	tokens []string
	at     int
	args   []any
	row    row
	// made is the row that an INSERT would add under a new key. ignores means that it leaves
	// existing rows as they are.
	made    row
	ignores bool
}

type row map[string]any

var clocks = strings.NewReplacer(sqltext.MySQL.Clock(), "now_ms()", sqltext.MySQL.SessionClock(), "now_ms()")

// read caches the tokens of frequent texts.
var read = map[string][]string{}

func parse(s *session, text string, args []any) *parser {
	tokens := read[text]
	if tokens == nil {
		tokens = token.FindAllString(uncommented(clocks.Replace(text)), -1)
		if len(args) > 0 || strings.HasPrefix(text, "SHOW ") {
			read[text] = tokens
		}
	}
	return &parser{s: s, tokens: tokens, args: args}
}

func uncommented(text string) string {
	return comment.ReplaceAllStringFunc(text, func(s string) string {
		if s[0] == '\'' {
			return s
		}
		return " "
	})
}

func (p *parser) peek() string {
	if p.at < len(p.tokens) {
		return strings.ToUpper(p.tokens[p.at])
	}
	return ""
}

func (p *parser) next() string {
	p.at++
	return p.tokens[p.at-1]
}

// takes reads these words if they come next.
func (p *parser) takes(words ...string) bool {
	for i, w := range words {
		if p.at+i >= len(p.tokens) || !strings.EqualFold(p.tokens[p.at+i], w) {
			return false
		}
	}
	p.at += len(words)
	return true
}

func (p *parser) want(words ...string) {
	if !p.takes(words...) {
		panic(fmt.Sprintf("the simulated server cannot read %q: wanted %q at %q", strings.Join(p.tokens, " "), words, strings.Join(p.tokens[min(p.at, len(p.tokens)):], " ")))
	}
}

func (p *parser) name() string { return strings.ReplaceAll(p.next(), "`", "") }

// list reads expressions between parentheses.
func (p *parser) list() (values []any) {
	p.want("(")
	for !p.takes(")") {
		values = append(values, p.expr())
		p.takes(",")
	}
	return values
}

func truth(b bool) any {
	if b {
		return int64(1)
	}
	return int64(0)
}

func isTrue(v any) bool { return v != nil && v != int64(0) }

// expr evaluates an expression of the current row.
func (p *parser) expr() any {
	v := p.and()
	for p.takes("OR") {
		w := p.and()
		v = truth(isTrue(v) || isTrue(w))
	}
	return v
}

func (p *parser) and() any {
	v := p.not()
	for p.takes("AND") {
		w := p.not()
		v = truth(isTrue(v) && isTrue(w))
	}
	return v
}

func (p *parser) not() any {
	if p.takes("NOT") {
		return truth(!isTrue(p.not()))
	}
	return p.comparison()
}

func (p *parser) comparison() any {
	v := p.sum()
	switch {
	case p.takes("IS", "NOT", "NULL"):
		return truth(v != nil)
	case p.takes("IS", "NULL"):
		return truth(v == nil)
	case p.takes("NOT", "IN"):
		return truth(!contains(p.list(), v))
	case p.takes("IN"):
		return truth(contains(p.list(), v))
	}
	if p.takes("LIKE") {
		before, after, _ := strings.Cut(p.sum().(string), "%")
		return truth(strings.HasPrefix(v.(string), before) && strings.HasSuffix(v.(string), after))
	}
	for _, op := range []string{"=", "<>", "<=", ">=", "<", ">"} {
		if p.takes(op) {
			return compare(op, v, p.sum())
		}
	}
	return v
}

func contains(list []any, v any) bool {
	for _, w := range list {
		if isTrue(compare("=", v, w)) {
			return true
		}
	}
	return false
}

func compare(op string, v, w any) any {
	if v == nil || w == nil {
		return nil
	}
	c := 0
	if n, ok := v.(int64); ok {
		if m, ok := w.(int64); ok {
			c = int(min(max(n-m, -1), 1))
		}
	} else {
		c = strings.Compare(fmt.Sprint(v), fmt.Sprint(w))
	}
	return truth(op == "=" && c == 0 || op == "<>" && c != 0 || c < 0 && op[0] == '<' || c > 0 && op[0] == '>' && op != "<>" || c == 0 && len(op) == 2 && op != "<>")
}

func (p *parser) sum() any {
	v := p.product()
	for {
		switch {
		case p.takes("+"):
			v = add(v, p.product(), 1)
		case p.takes("-"):
			v = add(v, p.product(), -1)
		default:
			return v
		}
	}
}

// outOfRange is a sum too large for any column. A CASE may not need it.
var outOfRange = serverError(1690, "22003", "BIGINT value is out of range in '(9223372036854775807 + `shop`.`bed_order`.`last`)'")

func add(v, w any, sign int64) any {
	if v == nil || w == nil {
		return nil
	}
	sum := v.(int64) + sign*w.(int64)
	if sign > 0 && w.(int64) > 0 && sum < v.(int64) {
		return outOfRange
	}
	return sum
}

func (p *parser) product() any {
	v := p.primary()
	for p.takes("*") {
		v = v.(int64) * p.primary().(int64)
	}
	return v
}

func (p *parser) primary() any {
	switch t := p.peek(); {
	case p.takes("("):
		v := p.expr()
		p.want(")")
		return v
	case p.takes("?"):
		v := p.args[0]
		p.args = p.args[1:]
		return v
	case p.takes("NULL"):
		return nil
	case p.takes("VALUES", "("):
		v := p.made[p.name()]
		p.want(")")
		return v
	case p.takes("CASE"):
		return p.cases()
	case p.takes("EXISTS", "(", "SELECT", "1", "FROM"):
		return p.exists()
	case t[0] == '\'':
		quoted := p.next()
		return strings.ReplaceAll(quoted[1:len(quoted)-1], "''", "'")
	case t[0] >= '0' && t[0] <= '9':
		n, _ := strconv.ParseInt(p.next(), 10, 64)
		return n
	case strings.HasPrefix(t, "@@"):
		return p.s.variable(p.next())
	case p.takes("CONVERT", "("):
		v := p.expr()
		p.want("USING")
		p.name()
		p.want(")")
		return v
	case p.at+1 < len(p.tokens) && p.tokens[p.at+1] == "(":
		return p.call(strings.ToUpper(p.next()), p.list())
	}
	name := p.name()
	name = name[strings.LastIndex(name, ".")+1:]
	v, ok := p.row[name]
	if !ok {
		panic(serverError(1054, "42S22", "Unknown column '"+name+"'"))
	}
	return v
}

func (p *parser) cases() (v any) {
	found := false
	for p.takes("WHEN") {
		on := isTrue(p.expr())
		p.want("THEN")
		if w := p.expr(); on && !found {
			v, found = w, true
		}
	}
	if p.takes("ELSE") {
		if w := p.expr(); !found {
			v = w
		}
	}
	p.want("END")
	return v
}

// exists reports whether another table has a row with a matching column.
func (p *parser) exists() any {
	t := p.table()
	p.want("AS")
	alias := p.name()
	p.want("WHERE")
	column := strings.TrimPrefix(p.name(), alias+".")
	p.want("=")
	v, found := p.primary(), false
	p.want(")")
	for _, c := range t.cells {
		r := c.seenBy(p.s)
		found = found || r != nil && r[column] == v
	}
	return truth(found)
}

func (p *parser) call(name string, args []any) any {
	switch name {
	case "NOW_MS":
		return p.s.server.now()
	case "VERSION":
		return p.s.server.version
	case "DATABASE", "SCHEMA":
		return p.s.database
	case "CONNECTION_ID":
		return int64(p.s.id)
	case "GREATEST":
		return max(args[0].(int64), args[1].(int64))
	case "LEAST":
		return min(args[0].(int64), args[1].(int64))
	case "COUNT":
		return int64(1)
	case "COALESCE", "IFNULL":
		if args[0] != nil {
			return args[0]
		}
		return args[1]
	case "IF":
		if isTrue(args[0]) {
			return args[1]
		}
		return args[2]
	case "HEX":
		return fmt.Sprintf("%X", args[0])
	case "REPLACE":
		return strings.ReplaceAll(args[0].(string), args[1].(string), args[2].(string))
	case "CONCAT":
		text := ""
		for _, a := range args {
			text += fmt.Sprint(a)
		}
		return text
	}
	panic("the simulated server has no function " + name)
}
