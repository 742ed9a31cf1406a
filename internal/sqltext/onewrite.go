package sqltext

import "strings"

// OneWrite classifies a text that may be forged. It returns DML only if every server runs
// text as one DML in a session with quoting q, however it treats /*!version … */. A message
// is DML.
func OneWrite(f Flavor, q Quoting, text string) Kind {
	kind := ClassifyAs(f, q, text).Kind
	if kind != DML || f != MySQL || !strings.Contains(text, "/*!") && !strings.Contains(text, "/*M!") {
		return kind
	}
	run := lexer{text: text, flavor: f, quoting: q}
	skipped := run
	skipped.skipExecutable = true
	rest := reader{parser: parser{lex: skipped}}
	// Servers run some of these parts and skip others. A keyword outside of them is the same
	// for all.
	if a, b := run.next(), skipped.next(); a != b || !a.kw.isDML(f) {
		return Opaque
	}
	return rest.whole().Kind
}

// IsOneWrite is OneWrite under every quoting. sure is false if the quoting decides.
func IsOneWrite(f Flavor, text string) (kind Kind, sure bool) {
	kind = OneWrite(f, 0, text)
	for _, q := range quotings(f, text) {
		if (OneWrite(f, q, text) == DML) != (kind == DML) {
			return kind, false
		}
	}
	return kind, true
}
