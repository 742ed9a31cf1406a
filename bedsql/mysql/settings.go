package mysql

import (
	_ "embed" // the list of neutral parameters
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/go-sql-driver/mysql"
)

//go:embed neutral.txt
var neutralList string

var neutral = dialects.ReadNeutral(neutralList)

// params returns the parameters of a configuration without address, account and the driver's
// defaults.
func params(cfg *mysql.Config) map[string]string {
	bare := cfg.Clone()
	bare.User, bare.Passwd, bare.Net, bare.Addr, bare.DBName, bare.Params = "", "", "", "", "", nil
	_, query, _ := strings.Cut(bare.FormatDSN(), "?")
	own, _ := url.ParseQuery(query) // it is well-formed
	all := map[string]string{}
	maps.Copy(all, cfg.Params)
	for key := range own {
		all[key] = own.Get(key)
	}
	return all
}

// settings writes all parameters but the neutral ones, in the form of the DSN.
func settings(cfg *mysql.Config, receiptSchema string) string {
	all := map[string]string{}
	given := params(cfg)
	for _, key := range slices.Sorted(maps.Keys(given)) {
		name, value := key, given[key]
		if _, variable := cfg.Params[key]; variable {
			name = variableName(key)
		} else if key == "loc" {
			if value = dialects.ZoneName(cfg.Loc); value == "UTC" {
				continue
			}
		}
		if !neutral.Has(name) {
			all[name] = value
		}
	}
	if receiptSchema != "" {
		all[strings.ToLower(attempt.SchemaParam)] = receiptSchema
	}
	var list []dialects.Setting
	for name, value := range all {
		list = append(list, dialects.Setting{Key: name, Value: value})
	}
	return dialects.Format(list)
}

// with returns the target of cfg in a session with other settings. The neutral parameters
// stay.
func with(cfg *mysql.Config, name string, list []dialects.Setting) (delivery.Target, error) {
	var query []string
	for key, value := range params(cfg) {
		if neutral.Has(variableName(key)) {
			query = append(query, key+"="+url.QueryEscape(value))
		}
	}
	for _, s := range list {
		value := s.Value
		if s.Key != "charset" && s.Key != "collation" { // which the driver takes as they stand
			value = url.QueryEscape(value)
		}
		query = append(query, s.Key+"="+value)
	}
	slices.Sort(query)
	to, own, err := readDSN("/?" + strings.Join(query, "&"))
	if err != nil {
		return delivery.Target{}, fmt.Errorf("they cannot be applied: %w", err)
	}
	if err := checkForged(to.Params); err != nil {
		return delivery.Target{}, err
	}
	own.DataSource = name
	to.User, to.Passwd, to.Net, to.Addr, to.DBName = cfg.User, cfg.Passwd, cfg.Net, cfg.Addr, cfg.DBName
	to.TLS, to.Logger, to.DialFunc = cfg.TLS, cfg.Logger, cfg.DialFunc
	if err := to.Apply(mysql.BeforeConnect(beforeConnect(cfg))); err != nil {
		return delivery.Target{}, err
	}
	t, err := target(to, own)
	switch {
	case err != nil:
	case t.AutocommitOff:
		err = errors.New("they turn autocommit off")
	case to.MultiStatements: // an entry needs them for nothing
		one := to.Clone()
		one.MultiStatements = false
		t.Connector, err = mysql.NewConnector(one)
	}
	return t, err
}

// variable matches the name of a session variable, or of a user's.
var variable = regexp.MustCompile(`^@?[A-Za-z0-9_$]+$`)

// checkForged rejects settings of an entry that would make the driver's SET do more than set
// variables of its session.
func checkForged(params map[string]string) error {
	for key, value := range params {
		switch name := variableName(key); {
		case !variable.MatchString(name), name == "password":
			return fmt.Errorf("%.40q is no session variable", key)
		case !isExpression(value):
			return fmt.Errorf("the value of %s is more than a value", key)
		}
	}
	return nil
}

// isExpression reports whether SET takes text for one value, under any quoting of the
// session.
func isExpression(text string) bool {
	if strings.Contains(text, "/*") {
		return false
	}
	for q := range sqltext.BackslashIsPlain | sqltext.QuotesAreNames + 1 {
		depth := 0
		for t := range sqltext.Tokens(sqltext.MySQL, q, text) {
			switch {
			case t.Text == "(":
				depth++
			case t.Text == ")":
				depth--
			}
			if t.Kind == sqltext.Broken || depth < 0 || t.Text == ";" || t.Text == "," && depth == 0 || t.Is("INTO") {
				return false
			}
		}
		if depth != 0 {
			return false
		}
	}
	return true
}

// variableName strips the possible prefixes of a session variable in SET.
func variableName(key string) string {
	name := strings.ToLower(strings.TrimSpace(key))
	for _, prefix := range []string{"@@", "session.", "local.", "session ", "local "} {
		name = strings.TrimSpace(strings.TrimPrefix(name, prefix))
	}
	return strings.Trim(name, "`")
}

// autocommitOff reports whether the DSN turns autocommit off.
func autocommitOff(cfg *mysql.Config) bool {
	for key, value := range cfg.Params {
		if variableName(key) == "autocommit" && isOff(value) {
			return true
		}
	}
	return false
}

func isOff(value string) bool {
	switch strings.ToUpper(strings.Trim(value, " \t\n'\"")) {
	case "0", "OFF", "FALSE":
		return true
	}
	return false
}
