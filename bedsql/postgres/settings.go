package postgres

import (
	_ "embed" // the list of neutral parameters
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

//go:embed neutral.txt
var neutralList string

var neutral = dialects.ReadNeutral(neutralList)

// execMode is pgx's own parameter for how values are sent.
const execMode = "default_query_exec_mode"

// In options, blanks end an argument unless a backslash escapes them.
var (
	optionArg     = regexp.MustCompile(`(?s)(?:\\.|[^\\\s\v])+`)
	escapedInArg  = regexp.MustCompile(`(?s)\\(.)`)
	toEscapeInArg = regexp.MustCompile(`[\\\s\v]`)
)

// schemaSetting is the schema for receipts, a setting unknown to the server.
var schemaSetting = strings.ToLower(attempt.SchemaParam)

// settings writes all parameters but the neutral ones, in the form of the DSN. A separate
// parameter wins over one in options, as on the server.
func settings(cfg *pgconn.Config, mode pgx.QueryExecMode, schema string) []dialects.Setting {
	all, read := allParams(cfg)
	if read {
		delete(all, "options")
	}
	var list []dialects.Setting
	for key, value := range all {
		if !neutral.Has(key) {
			list = append(list, dialects.Setting{Key: key, Value: value})
		}
	}
	for name, m := range execModes {
		if m == mode {
			list = append(list, dialects.Setting{Key: execMode, Value: name})
		}
	}
	if schema != "" {
		list = append(list, dialects.Setting{Key: schemaSetting, Value: schema})
	}
	return list
}

// allParams returns the run-time parameters with names in lower case, including those in
// options. whole is set if options has no other content.
func allParams(cfg *pgconn.Config) (all map[string]string, whole bool) {
	given := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(cfg.RuntimeParams)) {
		given[strings.ToLower(key)] = cfg.RuntimeParams[key]
	}
	all, whole = parseOptions(given["options"])
	maps.Copy(all, given)
	return all, whole
}

// execModes are pgx's modes by their names in a DSN, except its default.
var execModes = map[string]pgx.QueryExecMode{
	"cache_describe": pgx.QueryExecModeCacheDescribe, "describe_exec": pgx.QueryExecModeDescribeExec,
	"exec": pgx.QueryExecModeExec, "simple_protocol": pgx.QueryExecModeSimpleProtocol,
}

// with returns the target of cfg in a session with other settings. The neutral parameters
// stay.
func with(cfg *pgx.ConnConfig, name string, list []dialects.Setting, opts []stdlib.OptionOpenDB) delivery.Target {
	to, own := in(cfg, name, list)
	t := target(to, own, opts...)
	for i, s := range list {
		if c, ok := t.Connector.(*connector); ok && s.Key == "client_encoding" && isUTF8(s.Value) {
			// A pooler echoes its client's spelling, and pgx wants the server's.
			spelt := slices.Clone(list)
			spelt[i].Value = "UTF8"
			dialled, _ := in(cfg, name, spelt)
			c.Connector = stdlib.GetConnector(*dialled, opts...)
		}
	}
	return t
}

// in returns cfg with other settings.
func in(cfg *pgx.ConnConfig, name string, list []dialects.Setting) (*pgx.ConnConfig, dialects.Own) {
	to := cfg.Copy()
	all, _ := allParams(&cfg.Config)
	_, byOptions := all["options"]
	to.RuntimeParams = map[string]string{}
	for key, value := range all {
		if neutral.Has(key) {
			to.RuntimeParams[key] = value
		}
	}
	to.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	var args []string
	own := dialects.Own{DataSource: name}
	for _, s := range list {
		switch {
		case s.Key == schemaSetting:
			own.ReceiptSchema = s.Value
		case s.Key == execMode:
			to.DefaultQueryExecMode = execModes[s.Value]
		case byOptions && s.Key != "options":
			// A pooler may accept them only there.
			args = append(args, "-c "+toEscapeInArg.ReplaceAllString(s.Key+"="+s.Value, `\$0`))
		case !neutral.Has(s.Key):
			to.RuntimeParams[s.Key] = s.Value
		}
	}
	if args != nil {
		if others := to.RuntimeParams["options"]; others != "" {
			args = append([]string{others}, args...)
		}
		to.RuntimeParams["options"] = strings.Join(args, " ")
	}
	return to, own
}

// isUTF8 reports whether the server reads an encoding's name as UTF8: by its letters and
// digits, in any case.
func isUTF8(name string) bool {
	name = strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, name)
	return name == "utf8" || name == "unicode"
}

// parseOptions reads the server's command line: "-c name=value", "-cname=value" and
// "--name=value". A dash in a name is an underscore. whole is set if there was no other
// content.
func parseOptions(options string) (params map[string]string, whole bool) {
	params, whole = make(map[string]string), true
	set := func(arg string) {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			whole = false
			return
		}
		params[strings.ToLower(strings.ReplaceAll(name, "-", "_"))] = value
	}
	args := optionArg.FindAllString(options, -1)
	for i, arg := range args {
		args[i] = escapedInArg.ReplaceAllString(arg, "$1")
	}
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "-c" && i+1 < len(args):
			i++
			set(args[i])
		case strings.HasPrefix(arg, "--"), strings.HasPrefix(arg, "-c"):
			set(arg[2:])
		default:
			whole = false
		}
	}
	return params, whole
}
