package sqlite

import (
	"context"
	"database/sql/driver"
	_ "embed" // the list of neutral parameters
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
)

//go:embed neutral.txt
var neutralList string

var neutral = dialects.ReadNeutral(neutralList)

// isNeutral reports whether a parameter is neutral; for _pragma the pragma decides.
func isNeutral(key, value string) bool {
	if key != "_pragma" {
		return neutral.Has(key)
	}
	return neutral.Has("_pragma=" + pragmaOf(value))
}

// pragmaOf returns the name in the value of a _pragma.
func pragmaOf(value string) string {
	name, _, _ := strings.Cut(value, "(")
	name, _, _ = strings.Cut(name, "=")
	return strings.TrimSpace(name)
}

// settings writes all parameters but the neutral ones, without defaults. The driver runs
// pragmas in the order of their texts; so does settings.
func settings(query url.Values) string {
	var list []dialects.Setting
	for key, values := range query {
		for i, value := range values {
			switch {
			case isNeutral(key, value):
				continue
			case key == "_pragma":
				value = strings.TrimSpace(value)
			case i > 0 && strings.HasPrefix(key, "_"), value == "":
				continue // the driver takes the first
			case (key == "_time_format" || key == "_timezone") && query.Get("_time_integer_format") != "":
				continue // they have no part in an integer
			case key == "_timezone":
				value = zoneName(value)
			case key == "_dqs" && isTrue(value):
				continue
			case key == "_dqs":
				value = "false"
			}
			list = append(list, dialects.Setting{Key: key, Value: value})
		}
	}
	return dialects.Format(list)
}

// zoneName normalises a _timezone: "Local" becomes its zone's name.
func zoneName(name string) string {
	loc, err := time.LoadLocation(name)
	if err != nil {
		return name
	}
	return dialects.ZoneName(loc)
}

func isTrue(v string) bool {
	on, err := strconv.ParseBool(v)
	return err != nil || on
}

// with returns the target of a DSN in a session with other settings.
func with(dsn, name string, list []dialects.Setting) (delivery.Target, error) {
	head, rawQuery := cutQuery(dsn)
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return delivery.Target{}, err
	}
	for key, values := range query {
		query[key] = slices.DeleteFunc(values, func(value string) bool { return !isNeutral(key, value) })
	}
	for _, s := range list {
		if s.Key == "_pragma" { // which the driver runs as it stands
			if names, ok := pragmasOf("PRAGMA " + s.Value); !ok || len(names) != 1 || slices.Contains(forged, names[0]) {
				return delivery.Target{}, errors.New("a _pragma in them is not one pragma of a session")
			}
		}
		query.Add(s.Key, s.Value)
	}
	where, bare, _, err := readDSN(head + "?" + query.Encode())
	if err != nil {
		return delivery.Target{}, err
	}
	return target(where, bare, name)
}

// forged are pragmas that no entry needs: they would let a DML change the schema, or the
// place of temporary files.
var forged = []string{"writable_schema", "temp_store_directory", "data_store_directory"}

// flags are the settings among the pragmas that stay on or off for a connection until the
// next change.
var flags = []string{
	"automatic_index", "cell_size_check", "foreign_keys", "ignore_check_constraints", "legacy_alter_table", "query_only",
	"read_uncommitted", "recursive_triggers", "reverse_unordered_selects", "trusted_schema",
}

// carried implements Dialect.Carried for texts of pragmas. It queries the connection for the
// new values, because SQLite ignores some pragmas in a transaction.
func carried(ctx context.Context, conn driver.Conn, text, query string) (settings, apply string, ok bool) {
	pragmas, ok := pragmasOf(query)
	if !ok {
		return "", "", false
	}
	list, err := dialects.ToApply(text)
	if err != nil {
		return "", "", false
	}
	for _, name := range pragmas {
		if neutral.Has("_pragma=" + name) {
			continue
		}
		value, err := attempt.Setting(ctx, conn, "PRAGMA "+name)
		if err != nil || !slices.Contains(flags, name) {
			return "", "", false
		}
		list = slices.DeleteFunc(list, func(s dialects.Setting) bool { return sets(s, name) })
		list = append(list, dialects.Setting{Key: "_pragma", Value: name + "(" + value + ")"})
		apply += "PRAGMA " + name + " = " + value + ";"
	}
	return dialects.Format(list), apply, true
}

// sets reports whether s sets a pragma.
func sets(s dialects.Setting, pragma string) bool {
	switch s.Key {
	case "_pragma":
		return strings.EqualFold(pragmaOf(s.Value), pragma)
	case "_fk":
		return pragma == "foreign_keys"
	}
	return s.Key == "_"+pragma
}

// pragmasOf returns the names in a text that only sets pragmas.
func pragmasOf(text string) (names []string, ok bool) {
	var statement []sqltext.Token
	for _, next := range append(slices.Collect(sqltext.Tokens(sqltext.SQLite, 0, text)), sqltext.Token{Text: ";"}) {
		switch {
		case next.Kind == sqltext.Broken:
			return nil, false
		case next.Text != ";":
			statement = append(statement, next)
			continue
		case len(statement) == 0:
			continue
		}
		t, verb := statement, statement[0]
		if len(t) > 3 && t[2].Text == "." {
			t = t[2:] // of a schema
		}
		if len(t) < 4 || !verb.Is("PRAGMA") || t[1].Kind != sqltext.Word || t[2].Text != "=" && t[2].Text != "(" {
			return nil, false
		}
		names, statement = append(names, strings.ToLower(t[1].Text)), nil
	}
	return names, true
}
