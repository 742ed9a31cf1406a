package mysql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
)

// greet implements Dialect.Greet in one round trip, two where the server's
// defaults (a GLOBAL setting, init_connect) leave open what a session did:
// without autocommit a write waits for a COMMIT that nobody sends, and behind a
// chaining COMMIT the next one does.
func (c *compounds) greet(ctx context.Context, conn driver.Conn) (delivery.Facts, error) {
	settings, err := variables(ctx, conn)
	if err != nil || len(settings) == 0 {
		return delivery.Facts{}, err
	}
	c.learn(settings["version"])
	var facts delivery.Facts
	var set, was []string
	if !isOn(settings["autocommit"]) {
		set, was = append(set, "autocommit = 1"), append(was, "autocommit=0")
	}
	if completion := settings["completion_type"]; completion != "NO_CHAIN" && completion != "0" {
		set, was = append(set, "completion_type = 0"), append(was, "completion_type="+completion)
	}
	if len(set) > 0 {
		if _, _, err := attempt.Exec(ctx, conn, "SET "+strings.Join(set, ", "), nil); err != nil {
			return delivery.Facts{}, err
		}
		facts.Corrected = strings.Join(was, ", ")
	}
	for mode := range strings.SplitSeq(settings["sql_mode"], ",") {
		switch mode {
		case "NO_BACKSLASH_ESCAPES":
			facts.Quoting |= delivery.BackslashIsPlain
		case "ANSI_QUOTES":
			facts.Quoting |= delivery.QuotesAreNames
		}
	}
	return facts, nil
}

// variables reads what greet asks for. Who looks for COMMIT in what is sent (a
// proxy, a test) does not find it here.
func variables(ctx context.Context, conn driver.Conn) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	rows, _, err := attempt.Query(ctx, conn, "SHOW SESSION VARIABLES WHERE Variable_name IN ('version', 'completion_type', 'sql_mode') OR Variable_name LIKE 'autoco%it'", nil)
	if err != nil {
		return nil, err
	}
	buffered, err := attempt.Buffer(rows)
	if err != nil {
		return nil, err
	}
	settings := make(map[string]string, 4)
	for row := make([]driver.Value, len(buffered.Columns())); len(row) == 2 && buffered.Next(row) == nil; {
		settings[text(row[0])] = text(row[1])
	}
	if len(settings) != 4 && len(settings) != 0 { // none: a stand-in that is no server
		return nil, fmt.Errorf("bed: the server answered %d of 4 settings of the session", len(settings))
	}
	return settings, nil
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
