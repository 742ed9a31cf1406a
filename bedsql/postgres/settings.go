package postgres

import (
	_ "embed" // the list of neutral parameters
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/bedsql/bed/bedsql/internal/dsnsettings"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

//go:embed neutral.txt
var neutralList string

var neutral = dsnsettings.ReadNeutral(neutralList)

// fixedDefaults are values that no server's configuration should change, so that
// naming them says nothing.
var fixedDefaults = map[string]string{
	"array_nulls":                 "on",
	"client_encoding":             "UTF8",
	"row_security":                "on",
	"session_replication_role":    "origin",
	"standard_conforming_strings": "on",
	"transform_null_equals":       "off",
}

// execMode is pgx's own parameter that says how values are sent.
const execMode = "default_query_exec_mode"

// schemaSetting is the schema for receipts, of which the server knows nothing.
var schemaSetting = strings.ToLower(attempt.SchemaParam)

// settings writes all parameters but the neutral ones, without defaults and with
// one spelling for values that mean the same where that is known. A separate
// parameter wins over one in options, as on the server.
func settings(cfg *pgconn.Config, mode pgx.QueryExecMode, schema string) string {
	params := lowerKeys(cfg.RuntimeParams)
	all, read := parseOptions(params["options"])
	maps.Copy(all, params)
	if read {
		delete(all, "options")
	}
	var list []dsnsettings.Setting
	for key, value := range all {
		value = paramValue(key, value)
		if fixed, ok := fixedDefaults[key]; neutral.Has(key) || ok && value == fixed {
			continue
		}
		list = append(list, dsnsettings.Setting{Key: key, Value: value})
	}
	for name, m := range execModes {
		if m == mode {
			list = append(list, dsnsettings.Setting{Key: execMode, Value: name})
		}
	}
	if schema != "" {
		list = append(list, dsnsettings.Setting{Key: schemaSetting, Value: schema})
	}
	return dsnsettings.Format(list)
}

// execModes are pgx's modes by their names in a DSN, except its default.
var execModes = map[string]pgx.QueryExecMode{
	"cache_describe": pgx.QueryExecModeCacheDescribe, "describe_exec": pgx.QueryExecModeDescribeExec,
	"exec": pgx.QueryExecModeExec, "simple_protocol": pgx.QueryExecModeSimpleProtocol,
}

// with is the target of cfg in a session with other settings. The rest, and the
// dialling side's own business, stays as it is.
func with(cfg *pgx.ConnConfig, name, text string, opts []stdlib.OptionOpenDB) (delivery.Target, error) {
	list, err := dsnsettings.Parse(text)
	if err != nil {
		return delivery.Target{}, err
	}
	to := cfg.Copy()
	params := lowerKeys(cfg.RuntimeParams)
	options, byOptions := params["options"]
	all, _ := parseOptions(options)
	maps.Copy(all, params)
	to.RuntimeParams = map[string]string{}
	for key, value := range all {
		if neutral.Has(key) {
			to.RuntimeParams[key] = value
		}
	}
	to.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	var args []string
	schema := ""
	for _, s := range list {
		switch {
		case s.Key == schemaSetting:
			schema = s.Value
		case s.Key == execMode:
			to.DefaultQueryExecMode = execModes[s.Value]
		case byOptions && s.Key != "options":
			// A pooler may take them there and nowhere else.
			args = append(args, "-c "+escapeOption(s.Key+"="+s.Value))
		case !neutral.Has(s.Key):
			to.RuntimeParams[s.Key] = s.Value
		}
	}
	if args != nil {
		to.RuntimeParams["options"] = strings.TrimSpace(to.RuntimeParams["options"] + " " + strings.Join(args, " "))
	}
	t := target(to, stdlib.GetConnector(*to, opts...), name, schema, opts)
	if t.Settings != text {
		return t, errors.New("they name a parameter that is no setting, or one that cannot be applied")
	}
	return t, nil
}

// escapeOption keeps blanks from ending an argument in options.
func escapeOption(arg string) string {
	var b strings.Builder
	for i := range len(arg) {
		if arg[i] == '\\' || strings.IndexByte(spaces, arg[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(arg[i])
	}
	return b.String()
}

// parseOptions reads the server's command line: "-c name=value", "-cname=value"
// and "--name=value", with blanks in them escaped by a backslash. A dash in a
// name after "--" is an underscore. whole reports that there was nothing else.
func parseOptions(options string) (params map[string]string, whole bool) {
	params, whole = make(map[string]string), true
	set := func(arg string, dashes bool) {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			whole = false
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
		default:
			whole = false
		}
	}
	return params, whole
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

// paramValue gives one spelling to values that the server takes for the same.
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
