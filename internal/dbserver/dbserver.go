// Package dbserver finds the product of a database server, and the settings that weaken
// bed's promise.
package dbserver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/tables"
)

// Untested returns the warning about a product without bed's tests; empty for the others.
func Untested(product string) string {
	if product == "CockroachDB" || product == "YugabyteDB" {
		return product + " speaks PostgreSQL's protocol and is untested: bed was written for PostgreSQL's locks and errors"
	}
	return ""
}

// Warnings asks the log's server, of a kind ("mysql", "postgres" or "sqlite"), for what an operator
// has to know before relying on it. Each is a sentence without a value of the application.
func Warnings(ctx context.Context, q tables.Querier, kind string) ([]string, error) {
	switch kind {
	case "mysql":
		rows, err := tables.Texts(ctx, q, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'wsrep_sync_wait', 'innodb_flush_log_at_trx_commit')")
		settings := map[string]string{}
		for _, r := range rows {
			settings[strings.ToLower(r[0])] = r[1]
		}
		return galera(settings), err
	case "postgres":
		rows, err := tables.Texts(ctx, q, "SELECT version()")
		if err != nil || len(rows) == 0 {
			return nil, err
		}
		if w := Untested(PostgresProduct(rows[0][0])); w != "" {
			return []string{w}, nil
		}
	}
	return nil, nil
}

// oldest are the versions in docs/compatibility.md, for logs; TiDB's are its own.
var oldest = map[string]string{"MariaDB": "10.6", "MySQL": "8.0", "PostgreSQL": "9.5"}

// oldestTarget is MySQL's for a target.
const oldestTarget = "5.6"

// Older compares a version with the oldest supported one of its product, which it returns. log is
// set for the server of the transaction log.
func Older(product, version string, log bool) (older bool, least string) {
	if least = oldest[product]; product == "MySQL" && !log {
		least = oldestTarget
	}
	var have, want [2]int
	// MariaDB may put 5.5.5- in front of its version; a beta of PostgreSQL has one number.
	_, _ = fmt.Sscanf(strings.TrimPrefix(version, "5.5.5-"), "%d.%d", &have[0], &have[1])
	_, _ = fmt.Sscanf(least, "%d.%d", &want[0], &want[1])
	return have[0] > 0 && slices.Compare(have[:], want[:]) < 0, least
}

// PostgresProduct reads the result of version().
func PostgresProduct(version string) string {
	switch {
	case strings.Contains(version, "CockroachDB"):
		return "CockroachDB"
	case strings.Contains(version, "-YB-"), strings.Contains(version, "YugabyteDB"):
		return "YugabyteDB"
	}
	return "PostgreSQL"
}

// MySQLProduct reads the result of VERSION().
func MySQLProduct(version string) string {
	switch {
	case strings.Contains(version, "TiDB"):
		return "TiDB"
	case strings.Contains(version, "MariaDB"):
		return "MariaDB"
	}
	return "MySQL"
}

// galera warns of a cluster: Jepsen's analysis shows its lost and late writes.
func galera(settings map[string]string) (warnings []string) {
	if !strings.EqualFold(settings["wsrep_on"], "ON") && settings["wsrep_on"] != "1" {
		return nil
	}
	if flush := settings["innodb_flush_log_at_trx_commit"]; flush != "1" {
		warnings = append(warnings, fmt.Sprintf("a Galera node with innodb_flush_log_at_trx_commit=%s loses committed transactions when its nodes crash together: set 1", flush))
	}
	if settings["wsrep_sync_wait"] == "0" {
		warnings = append(warnings, "a Galera node with wsrep_sync_wait=0 shows reads what other nodes have committed only later: set 1, or keep to one node")
	}
	return append(warnings, "the log is on a Galera cluster: have all applications and jobs write to one node, another only when that one is gone")
}
