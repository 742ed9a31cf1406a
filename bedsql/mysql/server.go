package mysql

import (
	"context"
	"database/sql/driver"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/attempt"
)

// How long, and for how many tables, bed remembers the columns that generate ids.
const (
	tableMemory = 10 * time.Minute
	maxTables   = 2048
)

// tableIDs lists the columns of a table that generate ids.
type tableIDs struct {
	asked time.Time
	known bool
	auto  []string
}

// idIsKnown reports whether LAST_INSERT_ID() after w equals the id in the driver's Result.
// The server reports more to the driver than to SQL: an explicit value of an AUTO_INCREMENT
// column, and the row found by ON DUPLICATE KEY UPDATE.
func (c *compounds) idIsKnown(ctx context.Context, conn driver.Conn, w *write) bool {
	t := c.tableIDs(ctx, conn, w.table)
	w.auto = len(t.auto) > 0
	switch {
	case !t.known:
		return false
	case len(t.auto) == 0:
		return true
	case w.all || w.updates:
		return false
	}
	return !slices.ContainsFunc(t.auto, w.names)
}

// tableIDs queries the AUTO_INCREMENT columns of a table; for a view they stay unknown. It
// uses SHOW CREATE TABLE because information_schema works on internal temporary tables,
// which were seen to crash MariaDB 10.11.
func (c *compounds) tableIDs(ctx context.Context, conn driver.Conn, table []string) tableIDs {
	key := strings.Join(table, "\x00")
	c.mu.Lock()
	t, ok := c.tables[key]
	c.mu.Unlock()
	if ok && time.Since(t.asked) < tableMemory {
		return t
	}
	quoted := make([]string, len(table))
	for i, name := range table {
		quoted[i] = quoteName(name)
	}
	row, err := queryRow(ctx, conn, "SHOW CREATE TABLE "+strings.Join(quoted, "."))
	if err != nil && !classify(err).Answered() {
		return tableIDs{}
	}
	t = tableIDs{asked: time.Now()}
	if err == nil && len(row) == 2 { // a view gives four columns
		t.auto, t.known = autoColumns(attempt.Text(row[1])), true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tables == nil || len(c.tables) >= maxTables {
		c.tables = make(map[string]tableIDs)
	}
	c.tables[key] = t
	return t
}

// autoColumn matches the line of an AUTO_INCREMENT column in the output of SHOW CREATE
// TABLE: it begins with the column's quoted name, and a quoted value can only be a comment
// at its end.
var autoColumn = regexp.MustCompile("(?m)^ +([`\"])(.+?)[`\"] [^'\n]*\\bAUTO_INCREMENT\\b")

func autoColumns(create string) (auto []string) {
	for _, line := range autoColumn.FindAllStringSubmatch(create, -1) {
		auto = append(auto, strings.ToLower(strings.ReplaceAll(line[2], line[1]+line[1], line[1])))
	}
	return auto
}
