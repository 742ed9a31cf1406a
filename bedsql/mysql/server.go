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

// learn notes whether the server runs compounds. Behind a proxy the next session
// may be another server's: one without compounds says so, see notRun.
func (c *compounds) learn(version string) { c.known.Store(runsCompounds(version)) }

// For how long, and for how many tables, the column that generates ids is
// remembered.
const (
	tableMemory = 10 * time.Minute
	maxTables   = 2048
)

// tableIDs says which columns of a table generate ids.
type tableIDs struct {
	asked time.Time
	known bool
	auto  []string
}

// idIsKnown reports whether LAST_INSERT_ID() after w gives what the driver's
// Result would have given. The server reports more to the driver than to SQL: the
// value that was given for an AUTO_INCREMENT column, and the row that ON
// DUPLICATE KEY UPDATE found.
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

// tableIDs asks for the AUTO_INCREMENT column of a table; of a view nothing is
// known. It uses SHOW CREATE TABLE because information_schema works on internal
// temporary tables, over which MariaDB 10.11 was seen to crash.
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

// autoColumn is the line of an AUTO_INCREMENT column in what SHOW CREATE TABLE gives:
// it begins with the column's quoted name, and holds a value between quotes, if any,
// only as a comment at its end.
var autoColumn = regexp.MustCompile("(?m)^ +([`\"])(.+?)[`\"] [^'\n]*\\bAUTO_INCREMENT\\b")

func autoColumns(create string) (auto []string) {
	for _, line := range autoColumn.FindAllStringSubmatch(create, -1) {
		auto = append(auto, strings.ToLower(strings.ReplaceAll(line[2], line[1]+line[1], line[1])))
	}
	return auto
}
