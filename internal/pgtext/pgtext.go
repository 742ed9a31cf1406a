// Package pgtext writes what PostgreSQL wants written otherwise than other
// databases do.
package pgtext

import (
	"strconv"
	"strings"
)

// Numbered writes each ? as $1, $2 …; it is for statements of our own, in which
// there are no others.
func Numbered(statement string) string {
	var b strings.Builder
	for n := 1; ; n++ {
		before, after, found := strings.Cut(statement, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteString("$" + strconv.Itoa(n))
		statement = after
	}
}

// Array writes texts as the literal of an array, which every driver can send.
func Array(texts []string) string {
	size := len("{}")
	for _, t := range texts {
		size += len(t) + len(`"",`)
	}
	b := append(make([]byte, 0, size), '{')
	for i, t := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendElement(b, t)
	}
	return string(append(b, '}'))
}

// AppendElement appends a text as an element of such a literal.
func AppendElement(b []byte, text string) []byte {
	b = append(b, '"')
	for i := range len(text) {
		if text[i] == '"' || text[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, text[i])
	}
	return append(b, '"')
}
