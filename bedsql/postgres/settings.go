package postgres

import (
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// valueParams are the run-time parameters that change what is stored, or where:
// how values are read, what a name without a schema means, whose rights and
// which triggers apply.
var valueParams = []string{
	"array_nulls", "backslash_quote", "client_encoding", "datestyle", "default_text_search_config", "intervalstyle",
	"lc_monetary", "lc_numeric", "lc_time", "role", "row_security", "search_path", "session_authorization",
	"session_replication_role", "standard_conforming_strings", "timezone", "timezone_abbreviations",
	"transform_null_equals", "xmloption",
}

// fixedDefaults are the values that no server configuration should change, so
// that naming them says nothing.
var fixedDefaults = map[string]string{
	"array_nulls":                 "on",
	"client_encoding":             "UTF8",
	"row_security":                "on",
	"session_replication_role":    "origin",
	"standard_conforming_strings": "on",
	"transform_null_equals":       "off",
}

// settings writes what a configuration says of values and names as sorted
// "key=value;key=value", with defaults left out and values spelled one way. A
// parameter of its own wins over one in options, as on the server.
func settings(cfg *pgconn.Config) string {
	params := lowerKeys(cfg.RuntimeParams)
	all := parseOptions(params["options"])
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

// parseOptions reads the server's command line: "-c name=value", "-cname=value"
// and "--name=value", blanks within escaped by a backslash. A dash in a name
// after "--" is an underscore.
func parseOptions(options string) map[string]string {
	params := make(map[string]string)
	set := func(arg string, dashes bool) {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			return
		}
		if dashes {
			name = strings.ReplaceAll(name, "-", "_")
		}
		params[strings.ToLower(strings.TrimSpace(name))] = value
	}
	args := splitArgs(options)
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "-c" && i+1 < len(args):
			i++
			set(args[i], true)
		case strings.HasPrefix(arg, "--"):
			set(arg[2:], true)
		case strings.HasPrefix(arg, "-c"):
			set(arg[2:], true)
		}
	}
	return params
}

func splitArgs(s string) []string {
	var args []string
	var b strings.Builder
	inside := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
			inside = true
		case strings.IndexByte(spaces, c) >= 0:
			if inside {
				args = append(args, b.String())
				b.Reset()
			}
			inside = false
		default:
			b.WriteByte(c)
			inside = true
		}
	}
	if inside {
		args = append(args, b.String())
	}
	return args
}

// paramValue writes as one what the server takes for the same.
func paramValue(key, value string) string {
	value = strings.TrimSpace(value)
	switch key {
	case "search_path":
		return identifiers(value)
	case "datestyle":
		parts := strings.Split(strings.ToUpper(strings.ReplaceAll(value, " ", "")), ",")
		slices.Sort(parts)
		return strings.Join(parts, ",")
	case "client_encoding":
		if e := strings.ToUpper(strings.ReplaceAll(value, "-", "")); e == "UTF8" || e == "UNICODE" {
			return "UTF8"
		}
	case "timezone":
		if strings.EqualFold(value, "UTC") {
			return "UTC"
		}
	case "intervalstyle", "session_replication_role", "xmloption":
		return strings.ToLower(value)
	case "array_nulls", "row_security", "standard_conforming_strings", "transform_null_equals":
		switch strings.ToLower(value) {
		case "on", "true", "t", "yes", "y", "1":
			return "on"
		case "off", "false", "f", "no", "n", "0":
			return "off"
		}
	}
	return value
}

// identifiers folds a list of names as the server does: blanks around them do
// not count, names without quotes are lower case.
func identifiers(list string) string {
	var b strings.Builder
	quoted := false
	for _, r := range list {
		switch {
		case r == '"':
			quoted = !quoted
			b.WriteRune(r)
		case quoted:
			b.WriteRune(r)
		case strings.ContainsRune(spaces, r):
		default:
			b.WriteString(strings.ToLower(string(r)))
		}
	}
	return b.String()
}
