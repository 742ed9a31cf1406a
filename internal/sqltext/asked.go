package sqltext

import "strings"

// Asked returns the database's view of text: without comments other than orders to the
// database (/*+, /*!, /*M!), with one blank for each gap, and without a semicolon at its
// end. A text that reads differently under another quoting stays unchanged.
func Asked(f Flavor, text string) string {
	asked, ok := askedAs(f, 0, text)
	if !ok {
		return text
	}
	if strings.ContainsAny(text, `\"`) {
		for q := Quoting(1); q < BackslashEscapes<<1; q++ {
			if other, ok := askedAs(f, q, text); !ok || other != asked {
				return text
			}
		}
	}
	return asked
}

func askedAs(f Flavor, q Quoting, text string) (asked string, ok bool) {
	l := lexer{text: text, flavor: f, quoting: q}
	var b strings.Builder
	for end := 0; ; {
		t := l.next()
		writeGap(&b, f, text[end:t.start])
		if t.typ == tokEOF {
			return strings.Trim(b.String(), " ;"), !l.broken
		}
		b.WriteString(text[t.start:t.end])
		end = t.end
	}
}

// writeGap writes the gap between two tokens.
func writeGap(b *strings.Builder, f Flavor, gap string) {
	if gap == "" {
		return
	}
	l := lexer{text: gap, flavor: f}
	for l.pos < len(gap) {
		start := l.pos
		switch two := gap[start:min(start+2, len(gap))]; {
		case two == "/*":
			if !l.openExecutable() {
				l.skipComment()
			}
		case two == "*/":
			l.pos += 2
		case two == "--" || two[0] == '#':
			l.skipLine()
		default:
			l.pos++
		}
		if piece := gap[start:l.pos]; piece == "*/" || isOrder(piece) {
			b.WriteString(" " + piece)
		}
	}
	b.WriteByte(' ')
}

// isOrder reports whether a comment is an order to the database.
func isOrder(comment string) bool {
	return strings.HasPrefix(comment, "/*+") || strings.HasPrefix(comment, "/*!") || strings.HasPrefix(comment, "/*M!")
}
