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

// valueVariables are the session variables that change what is stored: how
// values are read, which are accepted, and which ids are generated.
var valueVariables = []string{
	"auto_increment_increment", "auto_increment_offset", "character_set_client", "character_set_connection",
	"collation_connection", "default_week_format", "div_precision_increment", "explicit_defaults_for_timestamp",
	"foreign_key_checks", "group_concat_max_len", "insert_id", "lc_time_names", "sql_auto_is_null", "sql_mode",
	"time_zone", "timestamp", "unique_checks",
}

// settings writes what a DSN says of values and names as sorted
// "key=value;key=value", with defaults left out and values spelled one way.
func settings(cfg *mysql.Config, params map[string]string) string {
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

// variableName strips what may stand before a session variable in SET.
func variableName(key string) string {
	name := strings.ToLower(strings.TrimSpace(key))
	for _, prefix := range []string{"@@", "session.", "local.", "session ", "local "} {
		name = strings.TrimSpace(strings.TrimPrefix(name, prefix))
	}
	return strings.Trim(name, "`")
}

// variableValue strips the quotes and writes as one what the server takes for
// the same.
func variableValue(name, value string) string {
	value = strings.TrimSpace(value)
	quoted := false
	if n := len(value); n >= 2 && value[0] == value[n-1] && (value[0] == '\'' || value[0] == '"') {
		value, quoted = value[1:n-1], true
	}
	switch {
	case name == "sql_mode" && (quoted || !strings.ContainsAny(value, "(@")):
		modes := strings.Split(strings.ToUpper(value), ",")
		for i := range modes {
			modes[i] = strings.TrimSpace(modes[i])
		}
		sort.Strings(modes)
		return strings.Join(slices.Compact(modes), ",")
	case strings.EqualFold(value, "true"), strings.EqualFold(value, "on"):
		return "1"
	case strings.EqualFold(value, "false"), strings.EqualFold(value, "off"):
		return "0"
	case name == "time_zone" && strings.EqualFold(value, "SYSTEM"):
		return "SYSTEM"
	}
	return value
}

// autocommitOff reports whether the DSN turns autocommit off.
func autocommitOff(cfg *mysql.Config) bool {
	for key, value := range cfg.Params {
		if variableName(key) == "autocommit" && variableValue("autocommit", value) == "0" {
			return true
		}
	}
	return false
}
