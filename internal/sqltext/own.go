package sqltext

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// Texts are bed's own texts for each database. A literal names all of them, even empty ones,
// so that a test of internal/docs finds a missing database.
type Texts struct{ MySQL, Postgres, SQLite string }

// Pick returns the text for the flavor; SQLite's, the plainest, for flavors without one. It
// panics for an unknown flavor.
func (f Flavor) Pick(from Texts) string {
	switch f {
	case MySQL:
		return from.MySQL
	case Postgres:
		return from.Postgres
	case SQLite, ANSI, Messages, Calls:
		return from.SQLite
	}
	panic("sqltext: Flavor.Pick has no text for flavor " + strconv.Itoa(int(f)))
}

// Clock returns the SQL expression for the database's own clock in milliseconds since the
// epoch. It avoids MySQL's UNIX_TIMESTAMP(), which is ambiguous for an hour a year, and
// reads UTC. PostgreSQL's is a subquery, so that it is read once and comparable with an
// index.
func (f Flavor) Clock() string {
	return f.Pick(Texts{
		MySQL:    `(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)`,
		Postgres: `(SELECT (extract(epoch from clock_timestamp()) * 1000)::bigint)`,
		SQLite:   `CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)`})
}

// SessionClock is Clock for a session of the application, whatever its SET timestamp says.
func (f Flavor) SessionClock() string {
	if f != MySQL {
		return f.Clock()
	}
	return `((TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(3)) - TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), NOW(3))) DIV 1000)`
}

// Text writes one of bed's own statements for the database. ? are its parameters, and it
// contains no other ?; {now} is the clock, {sql} the column name sql, which is a keyword.
// {by key} begins a DELETE that names rows by primary key. It makes MariaDB's optimizer use
// that key even in statements that allow no hint: mysql_delete() passes sql_safe_updates on
// as force_quick_range. MySQL reads it as a comment (there a hint or a LIMIT does it);
// elsewhere it is empty.
func (f Flavor) Text(statement string) string {
	statement = strings.NewReplacer("{now}", f.Clock(), "{sql}", f.Pick(Texts{MySQL: "`sql`", Postgres: `"sql"`, SQLite: `"sql"`}),
		"{by key}", f.Pick(Texts{MySQL: `/*M! SET STATEMENT sql_safe_updates = 1 FOR */ `, Postgres: ``, SQLite: ``})).Replace(statement)
	if f != Postgres {
		return statement
	}
	return Numbered(statement)
}

// List repeats an item n times, at least once.
func List(n int, item, separator string) string {
	return strings.Repeat(item+separator, n-1) + item
}

// Numbered writes each ? in PostgreSQL's form, as $1, $2 …
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

// Array writes texts as the literal of PostgreSQL's array, which every driver can send.
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

// Literal writes a text into a statement for a session of the application, whatever its character
// set and SQL mode: only printable ASCII without a backslash appears as it is.
func (f Flavor) Literal(s string) string {
	if ASCII(s) && !strings.Contains(s, `\`) {
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	}
	code := hex.EncodeToString([]byte(s))
	return f.Pick(Texts{
		MySQL:    "_utf8mb4 x'" + code + "'",
		Postgres: "pg_catalog.convert_from(pg_catalog.decode('" + code + "', 'hex'), 'UTF8')",
		SQLite:   "CAST(x'" + code + "' AS TEXT)"})
}

// ASCII reports whether s is printable ASCII, which every character set of a session has.
func ASCII(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' && s[i] != '\n' && s[i] != '\t' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}
