package mysql

import (
	_ "embed" // the list of neutral parameters
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"sort"
	"strings"

	"github.com/bedsql/bed/bedsql/internal/dsnsettings"
	"github.com/bedsql/bed/bedsql/internal/localzone"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/go-sql-driver/mysql"
)

//go:embed neutral.txt
var neutralList string

var neutral = dsnsettings.ReadNeutral(neutralList)

// params gives what a configuration says besides address and account, as the
// driver writes it: without the driver's defaults.
func params(cfg *mysql.Config) map[string]string {
	bare := cfg.Clone()
	bare.User, bare.Passwd, bare.Net, bare.Addr, bare.DBName = "", "", "", "", ""
	return rawParams(bare.FormatDSN())
}

// settings writes all parameters but the neutral ones, with one spelling for
// values that mean the same where that is known.
func settings(cfg *mysql.Config) string {
	var list []dsnsettings.Setting
	add := func(key, value string) { list = append(list, dsnsettings.Setting{Key: key, Value: value}) }
	for key, value := range params(cfg) {
		name := variableName(key)
		_, variable := cfg.Params[key]
		switch {
		case neutral.Has(name):
		case !variable && key == "loc":
			if zone := localzone.Name(cfg.Loc); zone != "UTC" {
				add(key, zone)
			}
		case !variable:
			add(key, value)
		case slices.Contains(valueVariables, name):
			add(name, variableValue(name, value))
		default:
			add(name, strings.TrimSpace(value))
		}
	}
	return dsnsettings.Format(list)
}

// with is the target of cfg in a session with other settings. The rest, and the
// dialling side's own business, stays as it is.
func with(cfg *mysql.Config, name, text string) (delivery.Target, error) {
	if f := reflect.ValueOf(cfg).Elem().FieldByName("beforeConnect"); f.IsValid() && !f.IsNil() {
		return delivery.Target{}, errors.New("its connector has a BeforeConnect function, which cannot be copied")
	}
	list, err := dsnsettings.Parse(text)
	if err != nil {
		return delivery.Target{}, err
	}
	var query []string
	for key, value := range params(cfg) {
		if neutral.Has(variableName(key)) {
			query = append(query, key+"="+url.QueryEscape(value))
		}
	}
	for _, s := range list {
		value := sessionValue(s.Key, s.Value)
		if s.Key != "charset" && s.Key != "collation" { // which the driver takes as they stand
			value = url.QueryEscape(value)
		}
		query = append(query, s.Key+"="+value)
	}
	sort.Strings(query)
	to, err := parseDSN("/?" + strings.Join(query, "&"))
	if err != nil {
		return delivery.Target{}, fmt.Errorf("they cannot be applied: %w", err)
	}
	to.User, to.Passwd, to.Net, to.Addr, to.DBName = cfg.User, cfg.Passwd, cfg.Net, cfg.Addr, cfg.DBName
	to.TLS, to.Logger, to.DialFunc = cfg.TLS, cfg.Logger, cfg.DialFunc
	t, err := target(to, "", name)
	switch {
	case err != nil:
	case t.AutocommitOff:
		err = errors.New("they turn autocommit off")
	case t.Settings != text:
		err = errors.New("they name a parameter that is no setting, or one that cannot be applied")
	}
	return t, err
}

// sessionValue writes what variableValue gave in the form that SET takes.
func sessionValue(name, value string) string {
	if (name != "time_zone" && name != "sql_mode") || strings.ContainsAny(value, "@('") || strings.EqualFold(value, "DEFAULT") {
		return value
	}
	return "'" + value + "'"
}

// variableName strips what may stand before a session variable in SET.
func variableName(key string) string {
	name := strings.ToLower(strings.TrimSpace(key))
	for _, prefix := range []string{"@@", "session.", "local.", "session ", "local "} {
		name = strings.TrimSpace(strings.TrimPrefix(name, prefix))
	}
	return strings.Trim(name, "`")
}

// variableValue strips the quotes and gives one spelling to values that the
// server takes for the same.
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
