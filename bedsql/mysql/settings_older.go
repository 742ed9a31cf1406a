package mysql

import (
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/bedsql/bed/bedsql/internal/localzone"
	"github.com/go-sql-driver/mysql"
)

// The driver's own settings when a DSN does not name them.
const (
	defaultCharset   = "utf8mb4"
	defaultCollation = "utf8mb4_general_ci"
)

// valueVariables are some of the session variables that change what is stored: how
// values are read, which are accepted, and which ids are generated.
var valueVariables = []string{
	"auto_increment_increment", "auto_increment_offset", "character_set_client", "character_set_connection",
	"collation_connection", "default_week_format", "div_precision_increment", "explicit_defaults_for_timestamp",
	"foreign_key_checks", "group_concat_max_len", "insert_id", "lc_time_names", "sql_auto_is_null", "sql_mode",
	"time_zone", "timestamp", "unique_checks",
}

// olderSettings are the settings as older versions, which knew fewer, wrote them
// into their entries.
func olderSettings(cfg *mysql.Config, params map[string]string) string {
	var list []string
	add := func(key, value string) { list = append(list, key+"="+value) }

	if loc := localzone.Name(cfg.Loc); loc != "UTC" {
		add("loc", loc)
	}
	// The driver truncates by positive durations only.
	if d, err := time.ParseDuration(params["timeTruncate"]); err == nil && d > 0 {
		add("timeTruncate", d.String())
	}
	if charset := strings.ToLower(params["charset"]); charset != "" {
		// The driver takes the first of the list that the server knows.
		if first, _, _ := strings.Cut(charset, ","); first != defaultCharset {
			add("charset", charset)
		}
	}
	if collation := strings.ToLower(cfg.Collation); collation != "" && collation != defaultCollation {
		add("collation", collation)
	}
	for key, value := range cfg.Params {
		if name := variableName(key); slices.Contains(valueVariables, name) {
			add(name, variableValue(name, value))
		}
	}
	sort.Strings(list)
	return strings.Join(slices.Compact(list), ";")
}
