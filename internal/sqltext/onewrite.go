package sqltext

import "strings"

// OneWrite reads a text that somebody may have forged. It returns DML if a session with
// quoting q runs text as one DML, whichever parts /*!version … */ its server runs. A message
// is DML. Any other kind says what the text may be.
func OneWrite(f Flavor, q Quoting, text string) Kind {
	kind := ClassifyAs(f, q, text).Kind
	if kind != DML || f != MySQL || !strings.Contains(text, "/*!") && !strings.Contains(text, "/*M!") {
		return kind
	}
	run := lexer{text: text, flavor: f, quoting: q}
	skipped := run
	skipped.skipExecutable = true
	rest := reader{parser: parser{lex: skipped}}
	// A server runs some parts and skips others. If the keyword stands outside of them, no
	// server reads another statement.
	if a, b := run.next(), skipped.next(); a != b || !a.kw.isDML(f) {
		return Opaque
	}
	return rest.whole().Kind
}

// IsOneWrite is OneWrite for every quoting that a session may have. It returns false for
// sure if the quoting decides.
func IsOneWrite(f Flavor, text string) (kind Kind, sure bool) {
	kind = OneWrite(f, 0, text)
	for _, q := range quotings(f, text) {
		if (OneWrite(f, q, text) == DML) != (kind == DML) {
			return kind, false
		}
	}
	return kind, true
}
