package differential

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"sort"
	"strings"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

// A side runs a program on one connection and describes the result of each step.
type side struct {
	name   string // of the database, which an answer may hold
	driver string
	dsn    string
	pool   *sql.DB
	conn   *sql.Conn
	tx     *sql.Tx
	// byText means that a BEGIN sent as text is open, as far as the program knows. SQLite then
	// locks out other readers of the tables, wholly after a failed second BEGIN EXCLUSIVE.
	byText   bool
	prepared map[string]*sql.Stmt // used again for the same text
	// positionsDiffer means that the receipt precedes the write in one text of the simple protocol,
	// and the server counts positions from there.
	positionsDiffer bool
	// onlyWritesCount is for SQLite: its answer to other statements repeats the result of the last
	// write, under ExactlyOnce the receipt's.
	onlyWritesCount bool
	// An error of COMMIT leaves the session to its owner.
	goesOn bool
}

func newSide(driver, dsn, database string) (*side, error) {
	s := &side{name: database, driver: driver, dsn: dsn}
	return s, s.open()
}

// open begins a session.
func (s *side) open() (err error) {
	s.byText = false
	s.prepared = make(map[string]*sql.Stmt)
	if s.pool, err = sql.Open(s.driver, s.dsn); err != nil {
		return err
	}
	if s.conn, err = s.pool.Conn(context.Background()); err != nil {
		return errors.Join(err, s.pool.Close())
	}
	// FOUND_ROWS() in a MariaDB session without queries is randomly 0 or 1.
	s.run(step{do: "query", sql: "SELECT 1"})
	return nil
}

func (s *side) close() error {
	if s.tx != nil {
		_ = s.tx.Rollback()
	}
	for _, stmt := range s.prepared {
		_ = stmt.Close()
	}
	return errors.Join(s.conn.Close(), s.pool.Close())
}

// again begins a new session after a failed COMMIT or ROLLBACK: the wrapper also ends the session
// unless the protocol shows the end of the transaction.
func (s *side) again(err error) {
	if err == nil || s.goesOn {
		return
	}
	_ = s.close()
	if err := s.open(); err != nil {
		panic(err)
	}
}

// run runs a step and describes everything visible to its caller.
func (s *side) run(t step) string {
	ctx := context.Background()
	defer func() {
		switch verb, _, _ := strings.Cut(strings.ToUpper(t.sql), " "); verb {
		case "BEGIN":
			s.byText = s.tx == nil
		case "COMMIT", "ROLLBACK":
			s.byText = s.byText && strings.Contains(t.sql, " TO ")
		}
	}()
	switch t.do {
	case "exec", "prepared exec":
		result, err := s.exec(ctx, t)
		if err != nil {
			if t.sql == "COMMIT" || t.sql == "ROLLBACK" {
				s.again(err)
			}
			return s.failure(err)
		}
		if s.onlyWritesCount && !isWrite.MatchString(t.sql) {
			return "ok"
		}
		rows, rowsErr := result.RowsAffected()
		id, idErr := result.LastInsertId()
		return fmt.Sprintf("%d rows (%s), id %d (%s)", rows, s.failure(rowsErr), id, s.failure(idErr))
	case "query", "prepared query":
		rows, err := s.query(ctx, t)
		if err != nil {
			return s.mask(s.failure(err))
		}
		text, _ := describe(rows, s.failure) // it says the error too
		return s.mask(text)
	case "commit":
		return s.end((*sql.Tx).Commit)
	case "rollback":
		return s.end((*sql.Tx).Rollback)
	default:
		if s.tx != nil {
			return "in a transaction already" // a shortened program
		}
		options := &sql.TxOptions{ReadOnly: t.do == "begin read-only"}
		if t.do == "begin serializable" {
			options.Isolation = sql.LevelSerializable
		}
		tx, err := s.conn.BeginTx(ctx, options)
		if err == nil {
			s.tx = tx
		}
		return s.failure(err)
	}
}

func (s *side) end(how func(*sql.Tx) error) string {
	if s.tx == nil {
		return "not in a transaction"
	}
	tx := s.tx
	s.tx, s.byText = nil, false
	err := how(tx)
	s.again(err)
	return s.failure(err)
}

func (s *side) exec(ctx context.Context, t step) (sql.Result, error) {
	if t.do == "exec" {
		if s.tx != nil {
			return s.tx.ExecContext(ctx, t.sql, t.args...)
		}
		return s.conn.ExecContext(ctx, t.sql, t.args...)
	}
	stmt, err := s.prepare(ctx, t.sql)
	if err != nil {
		return nil, err
	}
	return stmt.ExecContext(ctx, t.args...)
}

func (s *side) query(ctx context.Context, t step) (*sql.Rows, error) {
	if t.do == "query" {
		if s.tx != nil {
			return s.tx.QueryContext(ctx, t.sql, t.args...)
		}
		return s.conn.QueryContext(ctx, t.sql, t.args...)
	}
	stmt, err := s.prepare(ctx, t.sql)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, t.args...)
}

func (s *side) prepare(ctx context.Context, text string) (*sql.Stmt, error) {
	stmt, ok := s.prepared[text]
	if !ok {
		var err error
		if stmt, err = s.conn.PrepareContext(ctx, text); err != nil {
			return nil, err
		}
		s.prepared[text] = stmt
	}
	if s.tx != nil {
		return s.tx.StmtContext(ctx, stmt), nil
	}
	return stmt, nil
}

// failure describes an error by its types, text and fields.
func (s *side) failure(err error) string {
	if err == nil {
		return "ok"
	}
	text := fmt.Sprintf("%q", err.Error())
	for e := err; e != nil; e = errors.Unwrap(e) {
		if _, ok := e.(*pgconn.PrepareError); ok {
			continue // cannot be made outside of pgconn, so a receipt's pipeline has none
		}
		text += fmt.Sprintf(" %T", e)
		switch e := e.(type) {
		case *pgconn.PgError:
			told := *e
			told.File, told.Line, told.Routine = "", 0, "" // where in the server's source
			if s.positionsDiffer {
				told.Position = 0
			}
			text += fmt.Sprintf("%q", fmt.Sprintf("%+v", told))
		case *gomysql.MySQLError:
			text += fmt.Sprintf("%d %s", e.Number, e.SQLState)
		case interface{ Code() int }:
			text += fmt.Sprint(e.Code())
		}
	}
	return s.mask(text)
}

// mask hides necessary differences between two databases: their names, and PostgreSQL's numbers for
// their types.
func (s *side) mask(text string) string {
	return madeType.ReplaceAllString(strings.ReplaceAll(text, s.name, "DATABASE"), "${1}MADE")
}

var isWrite = regexp.MustCompile(`(?i)^\s*(INSERT|REPLACE|UPDATE|DELETE|WITH)\b`)

var madeType = regexp.MustCompile(`(?i)((?:OID |"\w+" ))[1-9]\d{4,}\b`)

// describe reads rows to their end: columns with all facts about their types, and values with
// theirs. For failing rows it returns the error alone: the wrapper reads the rows of a write before
// it answers, and so meets the error earlier.
func describe(rows *sql.Rows, failure func(error) string) (string, error) {
	defer func() { _ = rows.Close() }()
	var b strings.Builder
	for {
		columns, err := rows.ColumnTypes()
		if err != nil {
			return "columns: " + failure(err), err
		}
		values, into := make([]any, len(columns)), make([]any, len(columns))
		for i, c := range columns {
			into[i] = &values[i]
			length, hasLength := c.Length()
			precision, scale, hasScale := c.DecimalSize()
			nullable, knows := c.Nullable()
			fmt.Fprintf(&b, "%q %s %v %d %v %d %d %v %v %v; ", c.Name(), c.DatabaseTypeName(), c.ScanType(),
				length, hasLength, precision, scale, hasScale, nullable, knows)
		}
		for rows.Next() {
			if err := rows.Scan(into...); err != nil {
				return b.String() + failure(err), err
			}
			b.WriteString("\n  ")
			for _, v := range values {
				switch v := v.(type) {
				case []byte, string:
					fmt.Fprintf(&b, "%T(%q) ", v, v)
				default:
					fmt.Fprintf(&b, "%T(%v) ", v, v)
				}
			}
		}
		if !rows.NextResultSet() {
			break
		}
		b.WriteString("\n  next: ")
	}
	if err := rows.Err(); err != nil {
		return failure(err), err
	}
	return b.String(), nil
}

// A contents is the rows of each table.
type contents map[string][]string

func dump(ctx context.Context, pool *sql.DB, tables []string) (contents, error) {
	all := make(contents)
	for _, table := range tables {
		rows, err := pool.QueryContext(ctx, "SELECT * FROM "+table)
		if err != nil {
			return nil, err
		}
		text, err := describe(rows, error.Error)
		if err != nil {
			return nil, err
		}
		all[table] = strings.Split(madeType.ReplaceAllString(text, "${1}MADE"), "\n")
		sort.Strings(all[table])
	}
	return all, nil
}

// differ returns the rows in only one of the two.
func (c contents) differ(other contents) string {
	var b strings.Builder
	for table, rows := range c {
		for _, row := range minus(rows, other[table]) {
			fmt.Fprintf(&b, "%s, only bare:    %s\n", table, row)
		}
		for _, row := range minus(other[table], rows) {
			fmt.Fprintf(&b, "%s, only wrapped: %s\n", table, row)
		}
	}
	return b.String()
}

func minus(a, b []string) (rest []string) {
	count := make(map[string]int)
	for _, row := range b {
		count[row]++
	}
	for _, row := range a {
		if count[row]--; count[row] < 0 {
			rest = append(rest, row)
		}
	}
	return rest
}
