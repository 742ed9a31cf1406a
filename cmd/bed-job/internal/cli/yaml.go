package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// ConfigError lists the problems in a configuration file, one on a line, with their places. No line
// quotes a value or the source: either may hold a password.
type ConfigError struct{ error }

type decoder struct {
	*yaml.Decoder
	file string
	ctx  context.Context
}

// lookupKey is the context key of the function for looking up variables.
type lookupKey struct{}

// at is a problem with its place.
func (d *decoder) at(n ast.Node, format string, args ...any) error {
	line, column := 1, 1
	if n != nil && n.GetToken() != nil {
		line, column = n.GetToken().Position.Line, n.GetToken().Position.Column
	}
	return fmt.Errorf("%s:%d:%d: %w", d.file, line, column, fmt.Errorf(format, args...))
}

// eachAt is at for each line of an error from the package with this prefix.
func (d *decoder) eachAt(n ast.Node, err error, prefix string) error {
	if err == nil {
		return nil
	}
	var all []error
	for line := range strings.SplitSeq(err.Error(), "\n") {
		all = append(all, d.at(n, "%s", strings.TrimPrefix(line, prefix)))
	}
	return errors.Join(all...)
}

// decode decodes a node; nil leaves to as it is.
func (d *decoder) decode(n ast.Node, to any) error {
	if n == nil {
		return nil
	}
	return d.placed(d.DecodeFromNodeContext(d.ctx, n, to))
}

var (
	quoted = regexp.MustCompile(`"[^"]*"?`)
	plain  = regexp.MustCompile(`^[A-Za-z0-9_.:/\-\[\]()]{1,200}$`)
)

// placed adds the place to an error of the YAML package. It drops the text: that quotes keys, and a
// forgotten blank turns a DSN into a key.
func (d *decoder) placed(err error) error {
	if err == nil {
		return nil
	}
	var ye yaml.Error
	if !errors.As(err, &ye) || ye.GetToken() == nil {
		return d.at(nil, "this cannot be read as YAML")
	}
	text := strings.Replace(ye.GetMessage(), "unknown field", "unknown key", 1)
	isKey := errors.As(err, new(*yaml.UnknownFieldError)) || strings.HasPrefix(text, "mapping key ")
	text = quoted.ReplaceAllStringFunc(text, func(s string) string {
		if isKey {
			return safeName(strings.Trim(s, `"`))
		}
		return "…"
	})
	if strings.Contains(text, "must be specified") {
		text += ` (inside { } a value with ${NAME} must be quoted: "${NAME}")`
	}
	tk := ye.GetToken()
	return fmt.Errorf("%s:%d:%d: %s", d.file, tk.Position.Line, tk.Position.Column, text)
}

// A text is a scalar value. Its variables are expanded after parsing, so that their values are
// never read as YAML.
type text string

// UnmarshalYAML implements yaml.NodeUnmarshalerContext.
func (t *text) UnmarshalYAML(ctx context.Context, n ast.Node) (err error) {
	s := ""
	switch v := n.(type) {
	case *ast.StringNode:
		s = v.Value
	case *ast.LiteralNode:
		s = v.Value.Value
	case *ast.NullNode:
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		s = n.GetToken().Value
	default:
		err = errors.New("this must be text or a number")
	}
	if err == nil {
		s, err = expand(strings.TrimSpace(s), ctx.Value(lookupKey{}).(func(string) (string, bool)))
	}
	if err != nil {
		return &yaml.SyntaxError{Message: err.Error(), Token: n.GetToken()}
	}
	*t = text(s)
	return nil
}

// maxMillis is the greatest time.Duration in milliseconds.
const maxMillis = math.MaxInt64 / int64(time.Millisecond)

// set reads the value of a key: a time in milliseconds. Absent keys leave 0 for the default. An
// explicit 0 is refused, unless zeroIsNone; it then becomes -1.
func (d *decoder) set(key string, n ast.Node, to any, zeroIsNone bool) error {
	var t text
	if err := d.decode(n, &t); err != nil {
		return err
	}
	number := func(most float64, whole bool) (float64, error) {
		v, err := strconv.ParseFloat(string(t), 64)
		switch {
		case err != nil && !errors.Is(err, strconv.ErrRange) || v != v:
			return 0, d.at(n, "%s must be a number", key)
		case whole && v != math.Trunc(v):
			return 0, d.at(n, "%s must be a whole number", key)
		case v < 0:
			return 0, d.at(n, "%s must not be negative", key)
		case v == 0 && !zeroIsNone:
			return 0, d.at(n, "%s must be more than 0", key)
		case v > most:
			return 0, d.at(n, "%s must be at most %.0f", key, most)
		case v == 0:
			return -1, nil
		}
		return v, nil
	}
	var v float64
	var err error
	switch to := to.(type) {
	case *string:
		if *to = string(t); t == "" {
			err = d.at(n, "%s is empty", key)
		}
	case *bool:
		if *to = t == "true"; t != "true" && t != "false" {
			err = d.at(n, "%s must be true or false", key)
		}
	case *float64:
		*to, err = number(math.MaxFloat64, false)
	case *int:
		v, err = number(math.MaxInt32, true)
		*to = int(v)
	case *time.Duration:
		if v, err = number(float64(maxMillis), true); v > 0 {
			v *= float64(time.Millisecond)
		}
		*to = time.Duration(v)
	}
	return err
}

var (
	dollar = regexp.MustCompile(`\$(?:\$|\{[A-Za-z_][A-Za-z0-9_]*\})?`)
	// bcryptHash is a text with literal dollar signs.
	bcryptLike = regexp.MustCompile(`^\$2[abxy]?\$`)
	bcryptHash = regexp.MustCompile(`^\$2[abxy]?\$[0-9]{2}\$[./A-Za-z0-9]{53}$`)
)

// expand replaces ${NAME} by the environment variable and $$ by a dollar sign. It does not expand
// the values of variables again. Errors never quote s, which may be a DSN with a password.
func expand(s string, lookup func(string) (string, bool)) (_ string, err error) {
	if bcryptHash.MatchString(s) {
		return s, nil
	}
	if bcryptLike.MatchString(s) {
		return "", fmt.Errorf("it begins like a bcrypt hash, but a whole one has 60 characters, and this one %d: it was cut off, or a shell has replaced its dollar signs", len(s))
	}
	s = dollar.ReplaceAllStringFunc(s, func(found string) string {
		switch found {
		case "$$":
			return "$"
		case "$":
			err = cmp.Or(err, errors.New("a $ must be followed by {NAME} of an environment variable, or by another $ to stand for itself"))
			return ""
		}
		name := strings.Trim(found, "${}")
		value, ok := lookup(name)
		if !ok {
			err = cmp.Or(err, fmt.Errorf("the environment variable %s is not set", name))
		}
		return value
	})
	return s, err
}

// safeName quotes a key or the name of a data source in a message, unless it may be a DSN.
func safeName(name string) string {
	if !plain.MatchString(name) {
		return "(not shown, it may hold a password)"
	}
	return strconv.Quote(name)
}

// documents parses a file, in UTF-8 or as its byte order mark says. It replaces aliases and merge
// keys by their values; the decoder would lose them between sections. Top-level keys with the
// prefix x- are dropped.
func documents(src []byte) (all []ast.Node, err error) {
	text, _, err := transform.Bytes(unicode.BOMOverride(transform.Nop), src)
	if err != nil {
		return nil, err
	}
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, err
	}
	for _, doc := range file.Docs {
		if _, comment := doc.Body.(*ast.CommentGroupNode); doc.Body == nil || comment {
			continue
		}
		f := flattener{anchors: map[string]anchored{}}
		n, err := f.flat(doc.Body)
		if err != nil {
			return nil, err
		}
		if m, ok := n.(*ast.MappingNode); ok {
			m.Values = slices.DeleteFunc(m.Values, func(v *ast.MappingValueNode) bool { return strings.HasPrefix(keyOf(v), "x-") })
		}
		all = append(all, n)
	}
	return all, nil
}

// maxNodes bounds a document with its aliases replaced.
const maxNodes = 100_000

type anchored struct {
	node  ast.Node
	nodes int
}

type flattener struct {
	anchors map[string]anchored
	nodes   int
}

func yamlError(n ast.Node, text string) error {
	return &yaml.SyntaxError{Message: text, Token: n.GetToken()}
}

func (f *flattener) flat(n ast.Node) (ast.Node, error) {
	if f.nodes++; f.nodes > maxNodes {
		return nil, yamlError(n, "the file is too large with its aliases replaced")
	}
	var err error
	switch n := n.(type) {
	case *ast.AnchorNode:
		before := f.nodes
		v, err := f.flat(n.Value)
		f.anchors[n.Name.GetToken().Value] = anchored{v, f.nodes - before}
		return v, err
	case *ast.AliasNode:
		a, ok := f.anchors[n.Value.GetToken().Value]
		if !ok {
			return nil, yamlError(n, "no anchor of this name stands before it")
		}
		f.nodes += a.nodes
		return a.node, nil
	case *ast.SequenceNode:
		for i := range n.Values {
			if n.Values[i], err = f.flat(n.Values[i]); err != nil {
				return nil, err
			}
		}
	case *ast.MappingNode:
		return n, f.mapping(n)
	case *ast.MappingValueNode: // a mapping of one
		m := ast.Mapping(n.GetToken(), n.IsFlowStyle, n)
		return m, f.mapping(m)
	}
	return n, nil
}

func keyOf(v *ast.MappingValueNode) string { return v.Key.GetToken().Value }

// keyIn is the node of a key in a mapping.
func keyIn(n ast.Node, key string) ast.Node {
	if m, ok := n.(*ast.MappingNode); ok {
		for _, v := range m.Values {
			if keyOf(v) == key {
				return v.Key
			}
		}
	}
	return n
}

// mapping flattens the values of m. Its own keys win over merged ones.
func (f *flattener) mapping(m *ast.MappingNode) error {
	has := func(key string) bool {
		return slices.ContainsFunc(m.Values, func(v *ast.MappingValueNode) bool { return !v.Key.IsMergeKey() && keyOf(v) == key })
	}
	var merges []ast.Node
	for _, v := range m.Values {
		value, err := f.flat(v.Value)
		if err != nil {
			return err
		}
		switch from, list := value.(*ast.SequenceNode); {
		case !v.Key.IsMergeKey():
			v.Value = value
		case list:
			merges = append(merges, from.Values...)
		default:
			merges = append(merges, value)
		}
	}
	m.Values = slices.DeleteFunc(slices.Clone(m.Values), func(v *ast.MappingValueNode) bool { return v.Key.IsMergeKey() })
	for _, n := range merges {
		from, ok := n.(*ast.MappingNode)
		if !ok {
			return yamlError(n, "<< merges a mapping, or a list of mappings")
		}
		for _, v := range from.Values {
			if !has(keyOf(v)) {
				m.Values = append(m.Values, v)
			}
		}
	}
	return nil
}
