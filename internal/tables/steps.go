package tables

import (
	"archive/zip"
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/sqltext"
)

// NewestStep is the last step of the tables' history: a step brings tables from the version before
// it to the next one. Step 1 creates the tables.
const NewestStep = 2

// since lists the later steps, by the table, or the "table.name" of the column or index, that the
// step brings. A released step never changes.
var since = map[string]int{"bed_order_key": 2, "bed_order_queue": 2, "bed_order": 2}

// Steps returns the statements of a schema's steps after from, up to to. They skip existing tables
// and, except on MySQL, existing indexes.
func Steps(f sqltext.Flavor, schema string, from, to int) []string {
	return stepsOf(Of(f, schema), since, from, to)
}

func stepsOf(all []Table, since map[string]int, from, to int) (statements []string) {
	for step := from + 1; step <= to; step++ {
		for _, t := range all {
			of := func(name string) int { return cmp.Or(since[t.Name+"."+name], since[t.Name], 1) }
			born := cmp.Or(since[t.Name], 1)
			if born == step {
				statements = append(statements, t.createAs(func(name string) bool { return of(name) <= step }))
			}
			for _, c := range t.Columns {
				if born < step && of(c.Name) == step {
					statements = append(statements, t.Add(t.Name, c)...)
				}
			}
			for _, i := range t.Indexes {
				if of(i.Name) == step && (born < step || strings.HasPrefix(i.Create, "CREATE ")) {
					statements = append(statements, i.Create)
				}
			}
		}
	}
	return statements
}

// createAs returns the statement that creates the table with some of its columns and indexes,
// without remarks.
func (t *Table) createAs(has func(name string) bool) string {
	lines := slices.DeleteFunc(slices.Clone(t.body), func(line string) bool { return !has(lineName.FindStringSubmatch(line)[1]) })
	return "CREATE TABLE IF NOT EXISTS " + t.Name + " (\n" + strings.Join(lines, ",\n") + "\n)" + t.tail
}

// Migrations returns the steps of a schema as files for migration tools: 00001_NAME.up.sql. The
// archive serves as a file system in memory.
func Migrations(f sqltext.Flavor, schema, name string) (fs.FS, error) {
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for step := 1; step <= NewestStep; step++ {
		statements := Steps(f, schema, step-1, step)
		if len(statements) == 0 {
			continue
		}
		file, err := w.Create(fmt.Sprintf("%05d_%s.up.sql", step, name))
		if err == nil {
			_, err = fmt.Fprintf(file, "-- +goose Up\n\n%s;\n", strings.Join(statements, ";\n\n"))
		}
		if err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return zip.NewReader(bytes.NewReader(archive.Bytes()), int64(archive.Len()))
}

// fill is the value of a new column in existing rows if 0 or an empty text would be wrong.
var fill = map[string]string{
	"in_doubt":        "1", // nobody noted whether an attempt may have been applied
	"statement_count": "1",
	"transaction_id":  "id",
	"settings":        "'{}'",
}

// Add returns the statements that add a column to the table at a place. The table may have rows.
func (t *Table) Add(place string, c Column) []string {
	quoted, text := t.Quoted(c), c.Kind != "integer"
	add := fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s", place, quoted, c.Definition)
	var more []string
	if !c.Nullable && c.Default == "" {
		value := "''"
		if !text {
			value = cmp.Or(fill[c.Name], "0")
		}
		switch {
		case t.flavor == sqltext.MySQL && text:
			// A text there takes no default, and rows get the empty one all the same.
		case t.flavor == sqltext.SQLite:
			add += " DEFAULT " + value // it cannot be taken away again
		default:
			add += " DEFAULT " + value
			more = append(more, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP DEFAULT", place, quoted))
		}
	}
	if value := fill[c.Name]; text && value != "" {
		more = append(more, fmt.Sprintf("UPDATE %s SET %s = %s WHERE %[2]s = ''", place, quoted, value))
	}
	return append([]string{add}, more...)
}
