package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// A problem is something wrong at one place of a configuration file. Its text
// never quotes a value or the source line: either may hold a password.
type problem struct {
	line, column int
	text         string
}

// ConfigError is everything found wrong in a configuration file.
type ConfigError struct {
	file     string
	problems []problem
}

func (e *ConfigError) Error() string {
	lines := make([]string, len(e.problems))
	for i, p := range e.problems {
		lines[i] = fmt.Sprintf("%s:%d:%d: %s", e.file, p.line, p.column, p.text)
	}
	return strings.Join(lines, "\n")
}

// A decoder reads YAML nodes by hand: it reports every problem with its place
// at once, and expands variables in values only after the parse, so that what
// a variable holds is never read as YAML.
type decoder struct {
	file     string
	lookup   func(string) (string, bool)
	anchors  map[string]ast.Node
	problems []problem
}

// parse returns the top node of the document; nil for an empty one.
func (d *decoder) parse(src []byte) (body ast.Node) {
	defer func() {
		// A parser that meets input it never expected must not take the process along.
		if p := recover(); p != nil {
			body = nil
			d.problems = append(d.problems, problem{1, 1, "this cannot be read as YAML"})
		}
	}()
	file, err := parser.ParseBytes(src, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		d.syntax(src, err)
		return nil
	}
	var docs []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil {
			docs = append(docs, doc.Body)
		}
	}
	if len(docs) == 0 {
		d.problems = append(d.problems, problem{1, 1, "the file is empty"})
		return nil
	}
	if len(docs) > 1 {
		d.fail(docs[1], "a second YAML document; the configuration is one")
		return nil
	}
	d.anchors = map[string]ast.Node{}
	ast.Walk(d, docs[0])
	return docs[0]
}

// Visit implements ast.Visitor: it collects the anchors.
func (d *decoder) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil {
		d.anchors[a.Name.String()] = a.Value
	}
	return d
}

var quoted = regexp.MustCompile(`"[^"]*"`)

// syntax reports a parser's error. Its own text would quote the source.
func (d *decoder) syntax(src []byte, err error) {
	p := problem{1, 1, "this cannot be read as YAML"}
	var ye yaml.Error
	if errors.As(err, &ye) {
		p.text = quoted.ReplaceAllString(ye.GetMessage(), "…")
		if tk := ye.GetToken(); tk != nil && tk.Position != nil {
			p.line, p.column = tk.Position.Line, tk.Position.Column
		}
	}
	lines := strings.Split(string(src), "\n")
	if p.line >= 1 && p.line <= len(lines) && strings.Contains(lines[p.line-1], "${") {
		p.text += ` (inside { } a value with ${NAME} must be quoted: "${NAME}")`
	}
	d.problems = append(d.problems, p)
}

// err holds the problems in the order of their places; nil for none.
func (d *decoder) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b problem) int {
		if a.line != b.line {
			return a.line - b.line
		}
		return a.column - b.column
	})
	return &ConfigError{file: d.file, problems: d.problems}
}

// apart is a decoder of the same file whose problems are its own.
func (d *decoder) apart() *decoder {
	return &decoder{file: d.file, lookup: d.lookup, anchors: d.anchors}
}

func (d *decoder) fail(n ast.Node, format string, args ...any) {
	var tk *token.Token
	if n != nil {
		tk = n.GetToken()
	}
	d.failAt(tk, format, args...)
}

func (d *decoder) failAt(tk *token.Token, format string, args ...any) {
	p := problem{1, 1, fmt.Sprintf(format, args...)}
	if tk != nil && tk.Position != nil {
		p.line, p.column = tk.Position.Line, tk.Position.Column
	}
	d.problems = append(d.problems, p)
}

// An entry is one key of a mapping with its value.
type entry struct {
	key  string
	at   ast.Node // the key's node
	node ast.Node // the value's, nil for none
}

// mapping returns the entries of n in their order. at is where to report that n
// is not a mapping, what says what it should be.
func (d *decoder) mapping(at, n ast.Node, what string) ([]entry, bool) {
	n, ok := d.resolve(n)
	if !ok {
		return nil, false
	}
	var values []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	default:
		d.fail(at, "%s must be a mapping", what)
		return nil, false
	}
	entries := make([]entry, 0, len(values))
	seen := map[string]*token.Token{}
	for _, v := range values {
		var key string
		switch k := v.Key.(type) {
		case *ast.StringNode:
			key = k.Value
		case *ast.MergeKeyNode:
			d.fail(v.Key, "merge keys (<<) are not supported")
			return nil, false
		case ast.ScalarNode:
			key = k.GetToken().Value
		default:
			d.fail(v.Key, "a key must be plain text")
			continue
		}
		tk := v.Key.GetToken()
		if first := seen[key]; first != nil {
			d.fail(v.Key, "duplicate key %s, first given in line %d", safeName(key), first.Position.Line)
			continue
		}
		seen[key] = tk
		entries = append(entries, entry{key: key, at: v.Key, node: v.Value})
	}
	return entries, true
}

// fields reads a mapping whose keys are known. Each key that is present is handed
// to its function; any other is a problem.
func (d *decoder) fields(at, n ast.Node, what string, known map[string]func(entry)) bool {
	entries, ok := d.mapping(at, n, what)
	if !ok {
		return false
	}
	for _, e := range entries {
		if f := known[e.key]; f != nil {
			f(e)
			continue
		}
		names := make([]string, 0, len(known))
		for name := range known {
			names = append(names, name)
		}
		slices.Sort(names)
		d.fail(e.at, "unknown key %s in %s; it knows %s", safeKey(e.key), what, strings.Join(names, ", "))
	}
	return true
}

// resolve follows anchors and aliases to the node that is meant.
func (d *decoder) resolve(n ast.Node) (ast.Node, bool) {
	for range 16 {
		switch v := n.(type) {
		case *ast.AnchorNode:
			n = v.Value
		case *ast.AliasNode:
			to, ok := d.anchors[strings.TrimPrefix(v.Value.String(), "*")]
			if !ok {
				d.fail(v, "an alias without its anchor")
				return nil, false
			}
			n = to
		case *ast.TagNode:
			d.fail(v, "YAML tags (!) are not supported")
			return nil, false
		default:
			return n, true
		}
	}
	d.fail(n, "aliases refer to each other")
	return nil, false
}

// text reads a text value and expands its variables.
func (d *decoder) text(e entry) (string, bool) {
	n, ok := d.resolve(e.node)
	if !ok {
		return "", false
	}
	var s string
	switch v := n.(type) {
	case *ast.StringNode:
		s = v.Value
	case *ast.LiteralNode:
		s = strings.TrimSuffix(v.Value.Value, "\n")
	case nil, *ast.NullNode:
		d.fail(e.at, "%s has no value", safeName(e.key))
		return "", false
	default:
		d.fail(n, "%s must be text", safeName(e.key))
		return "", false
	}
	s, err := expand(s, d.lookup)
	if err != nil {
		d.fail(n, "%s: %v", safeName(e.key), err)
		return "", false
	}
	return s, true
}

// number reads a whole number between lo and hi; a variable may hold it.
func (d *decoder) number(e entry, lo, hi int64) (int64, bool) {
	n, text, ok := d.numeral(e)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseInt(text, 0, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) && !strings.HasPrefix(text, "-"):
		d.fail(n, "%s must be at most %d", safeName(e.key), hi)
	case err != nil && !errors.Is(err, strconv.ErrRange):
		d.fail(n, "%s must be a whole number", safeName(e.key))
	case v < 0 && lo >= 0:
		d.fail(n, "%s must not be negative", safeName(e.key))
	case v < lo:
		d.fail(n, "%s must be at least %d", safeName(e.key), lo)
	case v > hi:
		d.fail(n, "%s must be at most %d", safeName(e.key), hi)
	default:
		return v, true
	}
	return 0, false
}

// fraction reads a number between lo and below hi.
func (d *decoder) fraction(e entry, lo, hi float64) (float64, bool) {
	n, text, ok := d.numeral(e)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		d.fail(n, "%s must be a number", safeName(e.key))
	case !(v >= lo):
		d.fail(n, "%s must be at least %v", safeName(e.key), lo)
	case v >= hi:
		d.fail(n, "%s must be less than %v", safeName(e.key), hi)
	default:
		return v, true
	}
	return 0, false
}

// truth reads true or false; a variable may hold it.
func (d *decoder) truth(e entry) bool {
	n, ok := d.resolve(e.node)
	if !ok {
		return false
	}
	switch b := n.(type) {
	case *ast.BoolNode:
		return b.Value
	case *ast.StringNode:
		if text, ok := d.text(e); !ok || text == "true" || text == "false" {
			return text == "true"
		}
	case nil, *ast.NullNode:
		d.fail(e.at, "%s has no value", safeName(e.key))
		return false
	}
	d.fail(n, "%s must be true or false", safeName(e.key))
	return false
}

// numeral gives the text of a number, from the file or from a variable.
func (d *decoder) numeral(e entry) (ast.Node, string, bool) {
	n, ok := d.resolve(e.node)
	if !ok {
		return nil, "", false
	}
	switch i := n.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		return n, n.GetToken().Value, true
	case *ast.StringNode:
		if strings.Contains(i.Value, "${") {
			text, ok := d.text(e)
			return n, text, ok
		}
		if i.Token.Type == token.StringType {
			return n, i.Value, true // not quoted, such as a number too large for the parser
		}
	case nil, *ast.NullNode:
		d.fail(e.at, "%s has no value", safeName(e.key))
		return nil, "", false
	}
	d.fail(n, "%s must be a number", safeName(e.key))
	return nil, "", false
}

var (
	plainKey = regexp.MustCompile(`^[A-Za-z0-9_.\-]{1,64}$`)
	plainDSN = regexp.MustCompile(`^[A-Za-z0-9_.:/\-\[\]()]{1,200}$`)
)

const notShown = "(not shown, it may hold a password)"

// safeKey quotes a key for a message, unless it may be a DSN that ended up where
// a key belongs: a forgotten blank is enough for that.
func safeKey(key string) string {
	if !plainKey.MatchString(key) {
		return notShown
	}
	return strconv.Quote(key)
}

// safeName is safeKey for the name of a data source, which may be derived from
// a DSN (127.0.0.1:3306/orders) and then has no user and password.
func safeName(name string) string {
	if !plainDSN.MatchString(name) {
		return notShown
	}
	return strconv.Quote(name)
}
