// Package ownsql writes bed's own statements as each database wants them.
package ownsql

import (
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/sqltext"
)

// Dialect is how a database wants them.
type Dialect struct {
	sqltext.Flavor
	// Now is the expression for its clock, in milliseconds since the epoch.
	Now string
}

// Text writes a statement for the database: ? are its parameters, and it holds no
// other ?; {now} is the clock. {by key} begins a DELETE that names rows by
// primary key. On MariaDB it makes the optimizer use that key even where no hint is
// allowed: mysql_delete() passes sql_safe_updates on as force_quick_range. MySQL
// reads it as a comment (there the hint does it, for many rows); elsewhere it is
// empty.
func (d Dialect) Text(statement string) string {
	statement = strings.ReplaceAll(statement, "{now}", d.Now)
	statement = strings.Replace(statement, "{by key}", d.Pick(sqltext.Texts{MySQL: `/*M! SET STATEMENT sql_safe_updates = 1 FOR */ `, Postgres: ``, SQLite: ``}), 1)
	if d.Flavor != sqltext.Postgres {
		return statement
	}
	return Numbered(statement)
}

// List repeats an item n times, at least once.
func List(n int, item, separator string) string {
	return strings.Repeat(item+separator, n-1) + item
}

// Numbered writes each ? as $1, $2 …, as PostgreSQL wants it.
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

// Array writes texts as the literal of PostgreSQL's array, which every driver can
// send.
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
