package mysql

import (
	"context"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/go-sql-driver/mysql"
)

// This file finds the resolved settings of a session, set by the DSN, the server's defaults,
// init_connect or a proxy.

// usual maps the variables that affect values or places to their usual value; time_zone has
// none. It omits auto_increment_offset and auto_increment_increment: in a cluster each node
// has its own.
var usual = map[string]string{
	"block_encryption_mode": "aes-128-ecb", "character_set_client": "utf8mb4", "character_set_connection": "utf8mb4", "check_constraint_checks": "ON", "collation_connection": "utf8mb4_general_ci",
	"default_regex_flags": "", "default_week_format": "0", "div_precision_increment": "4", "explicit_defaults_for_timestamp": "ON", "foreign_key_checks": "ON",
	"group_concat_max_len": "1048576", "lc_time_names": "en_US", "old_mode": "UTF8_IS_UTF8MB3", "sql_auto_is_null": "OFF", "sql_log_bin": "ON",
	"sql_mode":         "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION",
	"sql_safe_updates": "OFF", "system_versioning_insert_history": "OFF", "time_zone": "", "transaction_isolation": "REPEATABLE-READ",
	"tx_isolation": "REPEATABLE-READ", "unique_checks": "ON",
}

// ownToEach are variables with a value of their own in each session, or on each node.
var ownToEach = []string{"auto_increment_increment", "auto_increment_offset", "identity", "insert_id", "last_insert_id", "pseudo_thread_id", "rand_seed1", "rand_seed2", "timestamp"}

// namesOf returns the additional variables in a DSN to query.
func namesOf(cfg *mysql.Config) (names []string) {
	for key := range cfg.Params {
		name := variableName(key)
		if _, known := usual[name]; !known && !neutral.Has(name) && !slices.Contains(ownToEach, name) && !strings.HasPrefix(name, "@") {
			names = append(names, name)
		}
	}
	return names
}

// asker queries sessions for their resolved settings.
type asker struct {
	// home is the database in the DSN, names are its additional variables to query. foreign is
	// set if the DSN is unknown.
	home    string
	names   []string
	foreign bool
	// compounds learns the server's version.
	compounds *compounds
}

// database is the pseudo-variable for the session's current database. It is listed only if
// it differs from the DSN's: that one is part of the address, and the job has its own.
const database = "database"

// initConnect is the server's variable with the statements for each new session, except for
// administrators.
const initConnect = "init_connect"

// userVariable matches a user variable in a text.
var userVariable = regexp.MustCompile("@(?:[A-Za-z0-9_.$]+|`[^`]+`|'[^'\\\\]+'|\"[^\"\\\\]+\")")

// atHome is a variable whose row in the answer to question means that the current database
// is the DSN's.
const atHome = "version_comment"

// question returns the query for greet and for the resolved settings. Its text contains no
// COMMIT, because some tools look for one in the traffic (a proxy, a test).
func (a *asker) question(names []string) string {
	names = slices.AppendSeq(append(slices.Clone(names), "version", "completion_type", initConnect), maps.Keys(usual))
	slices.Sort(names)
	for i, name := range names {
		names[i] = "'" + strings.NewReplacer(`\`, ``, `'`, `''`).Replace(name) + "'"
	}
	return "SHOW SESSION VARIABLES WHERE Variable_name IN (" + strings.Join(slices.Compact(names), ", ") + ") OR Variable_name LIKE 'autoco%it'" +
		fmt.Sprintf(" OR Variable_name = '%s' AND HEX(CONVERT(IFNULL(DATABASE(), '') USING utf8mb4)) = IF(@@lower_case_table_names = 1, '%X', '%X')",
			atHome, strings.ToLower(a.home), a.home)
}

// current adds the session's database if it differs from home, or if asked.
func (a *asker) current(ctx context.Context, conn driver.Conn, variables map[string]string, asked bool) error {
	_, home := variables[atHome]
	delete(variables, atHome)
	switch {
	case len(variables) == 0, a.foreign:
	case !home:
		name, err := queryRow(ctx, conn, "SELECT HEX(CONVERT(DATABASE() USING utf8mb4))")
		if err != nil || len(name) != 1 {
			return err
		}
		text, err := hex.DecodeString(attempt.Text(name[0]))
		variables[database] = string(text)
		return err
	case asked:
		variables[database] = a.home
	}
	return nil
}

// greet implements Dialect.Greet in one round trip, or two if the server's defaults (a
// GLOBAL setting, init_connect) need correction: without autocommit a write waits for a
// COMMIT that is never sent, and after a chaining COMMIT the next write does.
func (a *asker) greet(ctx context.Context, conn driver.Conn) (dialect.Facts, error) {
	settings, err := a.variables(ctx, conn, a.question(a.names), false)
	if err != nil || len(settings) == 0 {
		return dialect.Facts{}, err
	}
	// A proxy may route the next session to another server: one without compounds fails as in notRun.
	a.compounds.known.Store(runsCompounds(settings["version"]))
	facts := dialect.Facts{Session: resolved(settings)}
	var set, was []string
	if !isOn(settings["autocommit"]) {
		set, was = append(set, "autocommit = 1"), append(was, "autocommit=0")
	}
	if completion := settings["completion_type"]; completion != "NO_CHAIN" && completion != "0" {
		set, was = append(set, "completion_type = 0"), append(was, "completion_type="+completion)
	}
	if len(set) > 0 {
		if _, _, err := attempt.Exec(ctx, conn, "SET "+strings.Join(set, ", "), nil); err != nil {
			return dialect.Facts{}, err
		}
		facts.Corrected = strings.Join(was, ", ")
	}
	facts.Quoting = dialect.ModeQuoting(settings["sql_mode"])
	return facts, nil
}

// variables reads the answer to question; inDatabase also asks for the database.
func (a *asker) variables(ctx context.Context, conn driver.Conn, question string, inDatabase bool) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	rows, err := attempt.Ask(ctx, conn, question)
	if err != nil {
		return nil, err
	}
	settings := make(map[string]string, len(rows))
	for _, row := range rows {
		if len(row) != 2 {
			break
		}
		settings[attempt.Text(row[0])] = attempt.Text(row[1])
	}
	for _, name := range []string{"version", "completion_type", "sql_mode", "autocommit"} {
		if _, ok := settings[name]; !ok && len(settings) != 0 { // none: a stand-in, not a server
			return nil, fmt.Errorf("bed: the server did not answer what %s its session has", name)
		}
	}
	// Triggers read the user variables that init_connect may have set.
	users := userVariable.FindAllString(settings[initConnect], -1)
	delete(settings, initConnect)
	if err := readVariables(ctx, conn, users, settings); err != nil {
		return nil, err
	}
	return settings, a.current(ctx, conn, settings, inDatabase)
}

// readVariables adds user variables that have a value. A text in UTF-8 begins with a quote and an
// integer is written as such; adapt can set both. Any other value begins with a question mark.
func readVariables(ctx context.Context, conn driver.Conn, names []string, settings map[string]string) error {
	if len(names) == 0 {
		return nil
	}
	var columns []string
	for _, name := range names {
		columns = append(columns, "HEX(CONVERT("+name+" USING utf8mb4))", "HEX("+name+")", "CHARSET("+name+")", name)
	}
	row, err := queryRow(ctx, conn, "SELECT "+strings.Join(columns, ", "))
	for i := 0; i+3 < len(row); i += 4 {
		if row[i] == nil {
			continue
		}
		text, err := hex.DecodeString(attempt.Text(row[i]))
		if err != nil {
			return err
		}
		kind := "?"
		n, whole := row[i+3].(int64)
		switch {
		case whole && n >= 0:
			kind = ""
		case attempt.Text(row[i]) == attempt.Text(row[i+1]) && strings.HasPrefix(attempt.Text(row[i+2]), "utf8"): // HEX writes a number otherwise than its text
			kind = "'"
		}
		settings[names[i/4]] = kind + string(text)
	}
	return err
}

// integer matches an integer of readVariables.
var integer = regexp.MustCompile(`^[0-9]{1,19}$`)

// readNamed implements Dialect.Named.
func readNamed(ctx context.Context, conn driver.Conn, session string, names []string) (now, unset string, err error) {
	values := map[string]string{}
	if err := readVariables(ctx, conn, names, values); err != nil {
		return session, "", err
	}
	var list []dialects.Setting
	for name, value := range values {
		if strings.HasPrefix(value, "?") {
			return session, "", attempt.Certain(fmt.Errorf("%s holds neither a text in UTF-8 nor an integer from 0 to 2^63", name), dialect.Refused)
		}
		list = append(list, dialects.Setting{Key: name, Value: value})
	}
	return dialects.Replace(session, names, list, nil)
}

// nameable implements Dialect.Nameable.
func nameable(name, _ string) error {
	if !plainVariable.MatchString(name) {
		return errors.New("only a user variable can be named (@tenant): bed always keeps the session's other variables")
	}
	return nil
}

var plainVariable = regexp.MustCompile(`^@[a-z_][a-z0-9_]*$`)

// session implements Dialect.Session.
func (a *asker) session(ctx context.Context, conn driver.Conn, like string) (string, error) {
	list, err := dialects.Parse(like)
	if err != nil {
		return "", err
	}
	names, inDatabase := slices.Clone(a.names), false
	var users []string
	for _, s := range list {
		if plainVariable.MatchString(s.Key) {
			users = append(users, s.Key)
		}
		names = append(names, s.Key)
		inDatabase = inDatabase || s.Key == database
	}
	values, err := a.variables(ctx, conn, a.question(names), inDatabase)
	if err == nil {
		err = readVariables(ctx, conn, users, values)
	}
	return resolved(values), err
}

// resolved returns Facts.Session for the answer to question.
func resolved(variables map[string]string) string {
	var list []dialects.Setting
	for name, value := range variables {
		name = strings.ToLower(name)
		switch often, known := usual[name]; {
		case name == "version", name == "completion_type", name == "autocommit":
		case known && value == often:
		default:
			list = append(list, dialects.Setting{Key: name, Value: value})
		}
	}
	return dialects.Format(list)
}

// adapt implements Dialect.Adapt in one round trip, and one more to change the database.
func (a *asker) adapt(ctx context.Context, conn driver.Conn, has, want string) error {
	usually := maps.Clone(usual)
	usually[database] = a.home
	changes, err := dialects.Changes(has, want, usually)
	if err != nil {
		return err
	}
	var set []string
	for _, s := range changes {
		if text, ok := strings.CutPrefix(s.Value, "'"); plainVariable.MatchString(s.Key) && (ok || integer.MatchString(s.Value)) {
			if ok {
				s.Value = quoteText(text)
			}
			set = append(set, s.Key+" = "+s.Value)
			continue
		}
		if strings.HasPrefix(s.Key, "@") {
			continue // its type is not known
		}
		if !variable.MatchString(s.Key) || s.Key == "password" {
			return fmt.Errorf("bed: no session variable is called %.40q", s.Key)
		}
		if s.Key != database {
			set = append(set, s.Key+" = "+literal(s.Value))
		} else if _, _, err := attempt.Exec(ctx, conn, "USE "+quoteName(s.Value), nil); err != nil {
			return err
		}
	}
	if set == nil {
		return nil
	}
	_, _, err = attempt.Exec(ctx, conn, "SET "+strings.Join(set, ", "), nil)
	return err
}

func quoteName(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// literal writes a value from SHOW VARIABLES as SET accepts it, in every SQL mode.
func literal(value string) string {
	if value != "" && strings.Trim(value, "0123456789") == "" {
		return value
	}
	return quoteText(value)
}

func quoteText(value string) string {
	if strings.Contains(value, `\`) {
		return fmt.Sprintf("CONVERT(X'%X' USING utf8mb4)", value)
	}
	return "'" + strings.ReplaceAll(value, "'", "''") + "'"
}

func isOn(v string) bool { return v == "1" || strings.EqualFold(v, "ON") }
