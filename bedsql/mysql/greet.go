package mysql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
)

// greet implements Dialect.Greet in one round trip, two where the server's
// defaults (a GLOBAL setting, init_connect) leave open what a session did:
// without autocommit a write waits for a COMMIT that nobody sends, and behind a
// chaining COMMIT the next one does.
func (c *compounds) greet(ctx context.Context, conn driver.Conn) (delivery.Facts, error) {
	row, err := queryRow(ctx, conn, "SELECT VERSION(), @@autocommit, @@completion_type, @@sql_mode")
	if err != nil {
		return delivery.Facts{}, err
	}
	if len(row) != 4 {
		return delivery.Facts{}, fmt.Errorf("bed: the server answered %d of 4 settings of the session", len(row))
	}
	c.learn(text(row[0]))
	var facts delivery.Facts
	var set, was []string
	if !isOn(text(row[1])) {
		set, was = append(set, "autocommit = 1"), append(was, "autocommit=0")
	}
	if completion := text(row[2]); completion != "NO_CHAIN" && completion != "0" {
		set, was = append(set, "completion_type = 0"), append(was, "completion_type="+completion)
	}
	if len(set) > 0 {
		if _, _, err := delivery.Exec(ctx, conn, "SET "+strings.Join(set, ", "), nil); err != nil {
			return delivery.Facts{}, err
		}
		facts.Corrected = strings.Join(was, ", ")
	}
	for mode := range strings.SplitSeq(text(row[3]), ",") {
		switch mode {
		case "NO_BACKSLASH_ESCAPES":
			facts.Quoting |= sqltext.BackslashIsPlain
		case "ANSI_QUOTES":
			facts.Quoting |= sqltext.QuotesAreNames
		}
	}
	return facts, nil
}

func isOn(v string) bool { return v == "1" || strings.EqualFold(v, "ON") }

// learn notes whether the server runs compounds. Behind a proxy the next session
// may be another server's: one that has none answers so, see notRun.
func (c *compounds) learn(version string) {
	known := hasNone
	if runsCompounds(version) {
		known = hasCompounds
	}
	c.mu.Lock()
	c.server = known
	c.mu.Unlock()
}
