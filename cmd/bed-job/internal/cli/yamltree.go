package cli

import (
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

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
