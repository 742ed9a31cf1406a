package postgres

import (
	"maps"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// valueParams are some of the run-time parameters that change what is stored, or where:
// how values are read, what a name without a schema means, whose rights and
// which triggers apply.
var valueParams = []string{
	"array_nulls", "backslash_quote", "client_encoding", "datestyle", "default_text_search_config", "intervalstyle",
	"lc_monetary", "lc_numeric", "lc_time", "role", "row_security", "search_path", "session_authorization",
	"session_replication_role", "standard_conforming_strings", "timezone", "timezone_abbreviations",
	"transform_null_equals", "xmloption",
}

// olderSettings are the settings as older versions, which knew fewer, wrote them
// into their entries.
func olderSettings(cfg *pgconn.Config) string {
	params := lowerKeys(cfg.RuntimeParams)
	all, _ := parseOptions(params["options"])
	maps.Copy(all, params)
	var list []string
	for _, key := range valueParams {
		value, ok := all[key]
		if !ok {
			continue
		}
		if value = paramValue(key, value); value != fixedDefaults[key] {
			list = append(list, key+"="+value)
		}
	}
	return strings.Join(list, ";")
}
