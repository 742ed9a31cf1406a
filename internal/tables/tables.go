// Package tables is the one description of bed's own tables: it reads them from the text
// that creates them, and compares them with a database.
package tables

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/sqltext"
)

// Table is one of bed's tables as defined by its schema.
type Table struct {
	Name    string
	Columns []Column
	// Key are the columns of the primary key.
	Key []string
	// Indexes are the others.
	Indexes []Index
	// Create is the statement that creates it, without its indexes if those are separate
	// statements.
	Create string
	flavor sqltext.Flavor
	// key is the schema's clause that adds the key to a table: "PRIMARY KEY (id)".
	key string
	// body are the lines between the parentheses of Create, without remarks, and tail follows them.
	body []string
	tail string
}

// Column is a column of a table.
type Column struct {
	Name string
	// Definition is the text after the name in the schema; empty in a database.
	Definition string
	// Kind is text, integer, or the name of another type.
	Kind string
	// Size is its capacity in characters, or bits.
	Size      int64
	Nullable  bool
	Default   string
	Collation string
	// Generated is set if the database computes its value.
	Generated bool
}

// Index is an index of a table.
type Index struct {
	Name    string
	Columns []string
	Unique  bool
	// Partial is set if it does not always hold all rows, or the whole of each column.
	Partial bool
	// Create is the statement that creates it; empty in a database.
	Create string
}

var (
	createTable = regexp.MustCompile(`(?s)^CREATE TABLE IF NOT EXISTS (\w+) \(\n(.*)\n\)`)
	createIndex = regexp.MustCompile(`^CREATE INDEX IF NOT EXISTS (\w+) ON (\w+) \(([^)]*)\)`)
	columnLine  = regexp.MustCompile("^([`\"]?)(\\w+)[`\"]? +((\\w+)(?:\\((\\d+)\\))?.*)$")
	keyLine     = regexp.MustCompile(`^(?:CONSTRAINT \w+ )?PRIMARY KEY \(([^)]*)\)$`)
	indexLine   = regexp.MustCompile(`^KEY (\w+) \(([^)]*)\)$`)
	lineName    = regexp.MustCompile("^ *(?:KEY )?[`\"]?(\\w+)") // PRIMARY or CONSTRAINT for the key
	remark      = regexp.MustCompile(`,?\s*(--.*)?$`)
	defaultWord = regexp.MustCompile(` DEFAULT (\S+)`)
	collateWord = regexp.MustCompile(` COLLATE "?(\w+)"?`)
)

// Of reads the statements of a schema. It panics at an unreadable one: the texts are bed's
// own.
func Of(f sqltext.Flavor, schema string) []Table {
	var all []Table
	for statement := range strings.SplitSeq(schema+"\n", ";\n") {
		if statement = strings.TrimSpace(statement); statement == "" {
			continue
		}
		if m := createTable.FindStringSubmatch(statement); m != nil {
			t := Table{Name: m[1], Create: statement, flavor: f, tail: statement[len(m[0]):]}
			for line := range strings.SplitSeq(m[2], "\n") {
				line = remark.ReplaceAllString(line, "")
				t.read(strings.TrimSpace(line))
				t.body = append(t.body, line)
			}
			all = append(all, t)
			continue
		}
		m := createIndex.FindStringSubmatch(statement)
		i := slices.IndexFunc(all, func(t Table) bool { return m != nil && t.Name == m[2] })
		if i < 0 {
			panic(fmt.Sprintf("tables: a statement of a schema cannot be read: %s", statement))
		}
		all[i].Indexes = append(all[i].Indexes, Index{Name: m[1], Columns: names(m[3]), Partial: strings.Contains(statement, " WHERE "), Create: statement})
	}
	return all
}

// read reads a line of a CREATE TABLE.
func (t *Table) read(line string) {
	if m := keyLine.FindStringSubmatch(line); m != nil {
		t.Key, t.key = names(m[1]), line
		return
	}
	if m := indexLine.FindStringSubmatch(line); m != nil {
		t.Indexes = append(t.Indexes, Index{Name: m[1], Columns: names(m[2]), Create: "ALTER TABLE " + t.Name + " ADD " + line})
		return
	}
	m := columnLine.FindStringSubmatch(line)
	if m == nil {
		panic(fmt.Sprintf("tables: a line of the table %s cannot be read: %s", t.Name, line))
	}
	definition, isKey := strings.CutSuffix(m[3], " PRIMARY KEY")
	c := Column{Name: m[2], Definition: definition, Nullable: !strings.Contains(definition, "NOT NULL")}
	length, _ := strconv.ParseInt(m[5], 10, 64)
	c.Kind, c.Size = kindOf(t.flavor, m[4], length)
	if d := defaultWord.FindStringSubmatch(definition); d != nil {
		c.Default = d[1]
	}
	if d := collateWord.FindStringSubmatch(definition); d != nil {
		c.Collation = d[1]
	}
	if t.Columns = append(t.Columns, c); isKey {
		t.Key, t.key = []string{c.Name}, "PRIMARY KEY ("+c.Name+")"
	}
}

func names(list string) []string { return strings.Split(strings.ReplaceAll(list, " ", ""), ",") }

// boundless is the size of unbounded types.
const boundless = 1 << 62

// kindOf reads a type's name from a schema or a catalogue. SQLite bounds no type.
func kindOf(f sqltext.Flavor, name string, length int64) (kind string, size int64) {
	kind, size = strings.ToLower(name), boundless
	switch kind {
	case "varchar", "character varying", "text", "tinytext", "mediumtext", "longtext":
		switch {
		case f == sqltext.SQLite:
		case length > 0:
			size = length
		case f == sqltext.MySQL:
			size = map[string]int64{"tinytext": 1<<8 - 1, "text": 1<<16 - 1, "mediumtext": 1<<24 - 1, "longtext": 1<<32 - 1}[kind]
		}
		return "text", size
	case "bigint", "int", "integer", "mediumint", "smallint", "tinyint":
		if f != sqltext.SQLite {
			size = map[string]int64{"bigint": 64, "int": 32, "integer": 32, "mediumint": 24, "smallint": 16, "tinyint": 8}[kind]
		}
		return "integer", size
	}
	return kind, size
}

// Quoted returns a column's name in a statement.
func (t *Table) Quoted(c Column) string {
	if c.Name == "sql" {
		return t.flavor.Text("{sql}")
	}
	return c.Name
}

// Statements create the table with its indexes.
func (t *Table) Statements() []string {
	all := []string{t.Create}
	for _, i := range t.Indexes {
		if strings.HasPrefix(i.Create, "CREATE ") {
			all = append(all, i.Create)
		}
	}
	return all
}

// AddKey returns the statement that adds a missing key to the table, at a place.
func (t *Table) AddKey(place string) string {
	if t.flavor == sqltext.SQLite {
		return fmt.Sprintf("CREATE UNIQUE INDEX %s_id ON %s (%s)", t.Name, place, strings.Join(t.Key, ", "))
	}
	return "ALTER TABLE " + place + " ADD " + t.key
}

// Alter returns the statement that corrects a column of the table, at a place.
func (t *Table) Alter(place string, c Column) string {
	switch t.flavor {
	case sqltext.MySQL:
		return fmt.Sprintf("ALTER TABLE %s MODIFY %s %s", place, t.Quoted(c), c.Definition)
	case sqltext.Postgres:
		null := "SET NOT NULL"
		if c.Nullable {
			null = "DROP NOT NULL"
		}
		kind, _, _ := strings.Cut(c.Definition, " NOT NULL")
		kind = strings.TrimSuffix(kind, " NULL")
		text := fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s TYPE %s, ALTER COLUMN %s %s", place, t.Quoted(c), kind, t.Quoted(c), null)
		if c.Default != "" {
			text += fmt.Sprintf(", ALTER COLUMN %s SET DEFAULT %s", t.Quoted(c), c.Default)
		}
		return text
	}
	return fmt.Sprintf("rename %s, have it made anew, and copy its rows", place)
}

// Lacks returns the columns that are missing among names.
func (t *Table) Lacks(names []string) (missing []string) {
	for _, c := range t.Columns {
		if !slices.Contains(names, c.Name) {
			missing = append(missing, c.Name)
		}
	}
	return missing
}

// HasKey reports whether one of the indexes keeps the columns of the table's key unique. If
// there are called names, the index must have one of them.
func (t *Table) HasKey(indexes []Index, called ...string) bool {
	return slices.ContainsFunc(indexes, func(i Index) bool {
		return i.Unique && !i.Partial && slices.Equal(slices.Sorted(slices.Values(i.Columns)), slices.Sorted(slices.Values(t.Key))) &&
			(len(called) == 0 || slices.Contains(called, i.Name))
	})
}

// Identity is the row of bed_log with the log's identity.
const Identity = "identity"

// ReceiptSchema is the row of bed_log with the schema of a data source's receipts. It hashes
// the data source's name, which is too long for a row's name.
func ReceiptSchema(dataSource string) string {
	h := sha256.Sum256([]byte(dataSource))
	return "receipts-" + hex.EncodeToString(h[:])[:31]
}
