package postgres

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
	"unicode"

	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dbserver"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/jackc/pgx/v5/pgconn"
)

// This file finds the resolved settings of a session, set by the DSN, the account, the
// database, the server or a pooler.

// usual maps the run-time parameters that affect values or places to their usual value;
// empty for those without one. It omits read-only modes, which are temporary.
var usual = map[string]string{
	"array_nulls": "on", "backslash_quote": "safe_encoding", "bytea_output": "hex", "client_encoding": "UTF8", "datestyle": "ISO, MDY",
	"default_text_search_config": "pg_catalog.english", "default_transaction_isolation": "read committed",
	"extra_float_digits": "1", "intervalstyle": "postgres", "lc_monetary": "", "lc_numeric": "", "lc_time": "",
	"role": "none", "row_security": "on", "session_replication_role": "origin", "standard_conforming_strings": "on", "timezone": "",
	"timezone_abbreviations": "Default", "transform_null_equals": "off", "xmlbinary": "base64", "xmloption": "content",
}

// searchPath is the search path with names as the server reads them, with the account's name
// in place of "$user". It omits schemas without the right to use them: the server skips
// these. A missing schema stays, because it may be created later.
const searchPath = `SELECT 'search_path', COALESCE((SELECT string_agg(quote_ident(s), ', ' ORDER BY i) FROM (
  SELECT i, CASE WHEN n = '$user' THEN current_user ELSE n::name END AS s FROM (
    SELECT i, CASE WHEN m[1] LIKE '"%' THEN replace(substr(m[1], 2, length(m[1]) - 2), '""', '"')
      ELSE translate(m[1], 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', 'abcdefghijklmnopqrstuvwxyz') END AS n
    FROM regexp_matches(current_setting('search_path'), E'("(?:[^"]|"")*"|[^", \t\n\r\f][^, \t\n\r\f]*)', 'g') WITH ORDINALITY AS p (m, i)) AS named) AS path
  WHERE (SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = s) IS NOT FALSE), '')`

// ofAccount returns the custom settings that come with the account or the database.
const ofAccount = `SELECT DISTINCT split_part(c, '=', 1), current_setting(split_part(c, '=', 1), true)
  FROM pg_db_role_setting, unnest(setconfig) AS c WHERE split_part(c, '=', 1) LIKE '%.%'
  AND setrole IN (0, to_regrole(quote_ident(session_user))::oid) AND setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))`

// current returns the query for the settings in names.
func current(names []string) string {
	return "SELECT n, current_setting(n, true) FROM unnest(" + quote(sqltext.Array(names)) + "::text[]) AS n"
}

// inHex returns the query for names and values in hex, as UTF-8 whatever the client's encoding.
func inHex(query string) string {
	return "SELECT name, encode(convert_to(value, 'UTF8'), 'hex') FROM (" + query + ") AS resolved (name, value)"
}

// quote writes a literal independently of standard_conforming_strings and the client's
// encoding.
func quote(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\'' || r == '\\':
			b.WriteRune(r)
			b.WriteRune(r)
		case r > unicode.MaxASCII:
			fmt.Fprintf(&b, `\U%08X`, r)
		default:
			b.WriteRune(r)
		}
	}
	return " E'" + b.String() + "'"
}

// resolve queries the session of pg for its number and its resolved settings. Without a proper
// answer the text stays empty: some servers with this protocol do not support the query.
func resolve(ctx context.Context, pg *pgconn.PgConn, names []string) (pid, text string, err error) {
	all := slices.AppendSeq(slices.Clone(names), maps.Keys(usual))
	slices.Sort(all)
	answer, err := ask(ctx, pg, inHex("SELECT 'pid', pg_backend_pid()::text UNION ALL "+searchPath+" UNION ALL "+ofAccount+" UNION ALL "+current(slices.Compact(all))))
	if serverError(err) != nil {
		answer, err = ask(ctx, pg, "SELECT 'pid', encode(convert_to(pg_backend_pid()::text, 'UTF8'), 'hex')")
	}
	if err != nil {
		return "", "", err
	}
	var list []dialects.Setting
	for _, s := range answer {
		switch often, known := usual[s.Key]; {
		case s.Key == "pid":
			pid = s.Value
		case known && often != "" && s.Value == often, isNeutral(s.Key):
		default:
			list = append(list, s)
		}
	}
	return pid, dialects.Format(list), nil
}

func isNeutral(name string) bool {
	prefix, _, _ := strings.Cut(name, ".")
	return neutral.Has(name) || neutral.Has(prefix+".*")
}

// ask returns the settings in the answer to a query of inHex.
func ask(ctx context.Context, pg *pgconn.PgConn, query string) (list []dialects.Setting, err error) {
	results, err := pg.Exec(ctx, query).ReadAll()
	if err != nil || len(results) != 1 {
		return nil, err
	}
	for _, row := range results[0].Rows {
		if len(row) != 2 || row[1] == nil {
			continue
		}
		text, err := hex.DecodeString(string(row[1]))
		if err != nil {
			return nil, err
		}
		list = append(list, dialects.Setting{Key: strings.ToLower(string(row[0])), Value: string(text)})
	}
	return list, nil
}

// readNamed implements Dialect.Named.
func readNamed(ctx context.Context, conn driver.Conn, session string, names []string) (now, unset string, err error) {
	std := stdlibConn(conn)
	switch {
	case std == nil:
		return session, "", attempt.Certain(errNotPgx, dialect.Refused)
	case isPooled(conn):
		return session, "", errSessionless
	}
	query := current(names)
	if slices.Contains(names, pathSetting) {
		query = searchPath + " UNION ALL " + query // the first row of a name counts
	}
	list, err := ask(ctx, std.Conn().PgConn(), inHex(query))
	if err != nil {
		return session, "", err
	}
	return dialects.Replace(session, names, list, usual)
}

var errSessionless = attempt.Certain(errors.New("behind a pooler that changes servers between transactions, no setting stays with a connection"), dialect.Refused)

const pathSetting = "search_path"

// identifier matches the name of a run-time parameter.
var identifier = regexp.MustCompile(`^[a-z_][a-z0-9_$]*(\.[a-z_][a-z0-9_$]*)*$`)

// nameable implements Dialect.Nameable.
func nameable(name, receiptSchema string) error {
	switch {
	case !identifier.MatchString(name):
		return errors.New("it is not the name of a run-time parameter")
	case isNeutral(name):
		return errors.New("it affects neither values nor places")
	case name == "session_authorization", name == "is_superuser", strings.HasPrefix(name, "transaction_"):
		return errors.New("it belongs to the log-in, or to a single transaction")
	case (name == pathSetting || name == "role") && receiptSchema == "":
		return errors.New("it may lead to another table bed_receipt: give the receipts a schema of their own (" + attempt.SchemaParam + ")")
	}
	return nil
}

// sessionText implements Dialect.Session.
func sessionText(ctx context.Context, conn driver.Conn, like string) (string, error) {
	std := stdlibConn(conn)
	if std == nil {
		return "", errNotPgx
	}
	list, err := dialects.Parse(like)
	if err != nil {
		return "", err
	}
	_, text, err := resolve(ctx, std.Conn().PgConn(), namesOf(list))
	return text, err
}

// namesOf returns the names that question does not always include.
func namesOf(list []dialects.Setting) (names []string) {
	for _, s := range list {
		if _, known := usual[s.Key]; !known && s.Key != pathSetting && s.Key != execMode && s.Key != schemaSetting && s.Key != "options" {
			names = append(names, s.Key)
		}
	}
	return names
}

// adapt implements Dialect.Adapt, in one round trip. The role comes last: another role may
// lack the rights for the rest.
func adapt(ctx context.Context, conn driver.Conn, has, want string) error {
	std := stdlibConn(conn)
	if std == nil {
		return errNotPgx
	}
	changes, err := dialects.Changes(has, want, usual)
	if err != nil {
		return err
	}
	set := setting(changes, "false")
	if set == "" {
		return nil
	}
	sessionOf(std.Conn()).adapted = true
	_, err = std.Conn().PgConn().Exec(ctx, set).ReadAll()
	return err
}

// setting returns the query that sets settings, for the transaction only if local is "true".
func setting(list []dialects.Setting, local string) string {
	var calls, last []string
	for _, c := range list {
		call := "set_config(" + quote(c.Key) + "," + quote(c.Value) + ", " + local + ")"
		if c.Key == "role" {
			last = []string{call}
			continue
		}
		calls = append(calls, call)
	}
	if calls = append(calls, last...); calls == nil {
		return ""
	}
	return "SELECT " + strings.Join(calls, ", ")
}

// obeys implements Dialect.Obeys: it tries the settings in a transaction, which it rolls
// back.
func obeys(ctx context.Context, conn driver.Conn, text string) (has, asked string, err error) {
	std := stdlibConn(conn)
	if std == nil {
		return "", "", errNotPgx
	}
	list, err := dialects.ToApply(text)
	if err != nil {
		return "", "", err
	}
	list = slices.DeleteFunc(list, func(s dialects.Setting) bool {
		return s.Key == execMode || s.Key == schemaSetting || s.Key == "options"
	})
	set := setting(list, "true")
	if set == "" {
		return "", "", nil
	}
	pg, names := std.Conn().PgConn(), namesOf(list)
	if _, has, err = resolve(ctx, pg, names); err != nil {
		return "", "", err
	}
	if _, err = pg.Exec(ctx, "BEGIN").ReadAll(); err != nil {
		return "", "", err
	}
	if _, err = pg.Exec(ctx, set).ReadAll(); err == nil {
		_, asked, err = resolve(ctx, pg, names)
	}
	if _, rerr := pg.Exec(ctx, "ROLLBACK").ReadAll(); err == nil {
		err = rerr
	}
	return has, asked, err
}

// greet implements Dialect.Greet without a round trip for our own connector: servers with
// PostgreSQL's protocol report their properties on dialling.
func greet(ctx context.Context, conn driver.Conn) (dialect.Facts, error) {
	std := stdlibConn(conn)
	if std == nil {
		return dialect.Facts{}, nil
	}
	pg, s := std.Conn().PgConn(), sessionOf(std.Conn())
	text := s.resolved
	if !s.asked {
		var err error
		if _, text, err = resolve(ctx, pg, nil); err != nil {
			return dialect.Facts{}, err
		}
	}
	return dialect.Facts{Session: text, Warning: warning(pg.ParameterStatus)}, nil
}

// isPooled implements Dialect.Pooled.
func isPooled(conn driver.Conn) bool {
	_, ok := attempt.Bare(conn).(*pooled)
	return ok
}

// warning returns the warning about the product that reports these parameters.
func warning(parameter func(string) string) string {
	if parameter("crdb_version") != "" {
		return dbserver.Untested("CockroachDB")
	}
	return dbserver.Untested(dbserver.PostgresProduct(parameter("server_version")))
}
