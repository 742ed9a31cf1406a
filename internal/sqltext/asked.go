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
	for _, q := range quotings(f, text) {
		if other, ok := askedAs(f, q, text); !ok || other != asked {
			return text
		}
	}
	return asked
}

func askedAs(f Flavor, q Quoting, text string) (asked string, ok bool) {
	var b strings.Builder
	l := lexer{text: text, flavor: f, quoting: q, orders: &b}
	for end := 0; ; {
		t := l.next()
		if t.start > end {
			b.WriteByte(' ')
		}
		if t.typ == tokEOF {
			return strings.Trim(b.String(), " ;"), !l.broken
		}
		b.WriteString(text[t.start:t.end])
		end = t.end
	}
}

// isOrder reports whether a comment is an order to the database, or ends one.
func isOrder(comment string) bool {
	return strings.HasPrefix(comment, "/*+") || strings.HasPrefix(comment, "/*!") || strings.HasPrefix(comment, "/*M!") || comment == "*/"
}
