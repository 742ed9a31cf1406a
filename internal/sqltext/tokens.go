package sqltext

import (
	"iter"
	"strings"
)

// TokenKind is the kind of a [Token].
type TokenKind uint8

// The kinds. A number is a Word, because MySQL's names may begin with digits.
const (
	Mark   TokenKind = iota
	Word             // a name, a keyword or a number
	Quoted           // a name between quotes
	String           // a literal; in MySQL, with ANSI_QUOTES, "a name"
	Param            // ?
	Var              // MySQL's @name or @@name
	Broken           // a quote or comment that does not end
)

// Token is a piece of a text; blanks and comments are not tokens.
type Token struct {
	Kind  TokenKind
	Text  string
	Start int
}

// Is reports whether the token is this word, in any case.
func (t Token) Is(word string) bool { return t.Kind == Word && strings.EqualFold(t.Text, word) }

// IsName reports whether the token can be a name.
func (t Token) IsName() bool { return t.Kind == Word || t.Kind == Quoted }

// Name returns the token's text without its quotes.
func (t Token) Name() string {
	if t.Kind == Quoted || t.Kind == String {
		q := t.Text[:1]
		return strings.ReplaceAll(t.Text[1:len(t.Text)-1], q+q, q)
	}
	return t.Text
}

// Tokens splits a text into tokens. A Broken one is the last.
func Tokens(f Flavor, q Quoting, text string) iter.Seq[Token] {
	kinds := [...]TokenKind{tokWord: Word, tokValue: Word, tokIdent: Quoted, tokString: String, tokUserVar: Var, tokSysVar: Var, tokAssign: Mark}
	return func(yield func(Token) bool) {
		l := lexer{text: text, flavor: f, quoting: q}
		for {
			t := l.next()
			out := Token{Kind: kinds[t.typ], Text: text[t.start:t.end], Start: t.start}
			switch {
			case l.broken:
				out.Kind = Broken
			case t.typ == tokEOF:
				return
			case t.char == '?':
				out.Kind = Param
			}
			if !yield(out) || l.broken {
				return
			}
		}
	}
}
