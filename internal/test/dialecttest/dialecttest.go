// Package dialecttest tests the promises of every dialect. Its cases are in testdata/: errors, dsn
// and lost. A dialect brings a [Kit], and writes its own tests only for the peculiarities of its
// database.
package dialecttest

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/cases"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Kit is a database's part of the suite.
type Kit struct {
	// Name names the files of testdata/.
	Name string
	// DB makes a database, WithParam adds a parameter to its DSN.
	DB        func(testing.TB) testdb.DB
	WithParam func(dsn, param string) string
	Dialect   *dialect.Dialect
	Target    func(dsn string) (delivery.Target, error)
	// NewConnector wraps a target.
	NewConnector func(delivery.Target, bedsql.Config) (driver.Connector, error)
	// Neutral holds the parameters of testdata/dsn's list of neutral ones.
	Neutral map[string]bool
	// Code returns the class of a server error with this code, in the form of testdata/errors.
	Code func(code string) dialect.Class
	// Own returns the servers' own lists of codes, by name.
	Own func(testing.TB) map[string][]string
	// BadConn is the class of driver.ErrBadConn.
	BadConn dialect.Class
	// Schema makes the tables of testdata/errors and testdata/lost: t (id, n)
	// with a row at least.
	Schema []string
	// Misfits are calls with unfitting arguments, Modes the DSN parameters that change how
	// arguments travel.
	Misfits []Call
	Modes   []string
	// Unreachable are DSNs without a server.
	Unreachable []string
	// BadDSN is an invalid DSN.
	BadDSN string
	Values Values
	// Server is nil for a database in a file.
	Server *Server
	// Hold are the statements of another session before those of testdata/lost. RollbackFails
	// reports whether ROLLBACK fails without a transaction.
	Hold          []string
	RollbackFails bool
}

// Exercise runs the suite. Its test must not be parallel: DSNs depend on the environment.
func Exercise(t *testing.T, k Kit) {
	t.Run("DSN", k.dsns)
	t.Run("neutral parameters", k.neutral)
	t.Run("code", k.codes)
	t.Run("server's own list", k.own)
	t.Run("statement", k.statements)
	t.Run("no answer", k.noAnswer)
	t.Run("arguments that do not fit", k.misfits)
	t.Run("failed dial", k.failedDial)
	t.Run("connector", k.connector)
	t.Run("log", k.log)
	t.Run("takes writes", k.takesWrites)
	t.Run("lost transaction", k.lost)
	t.Run("required rows", func(t *testing.T) { requiredRows(t, &k) })
	t.Run("values", k.values)
	t.Run("late delivery", func(t *testing.T) { late(t, &k) })
	if k.Server != nil {
		t.Run("later", k.later)
		t.Run("context ended", k.contextEnded)
	}
}

// Every DSN of testdata/dsn is named as it says and keeps its settings; an error
// never quotes it.
func (k *Kit) dsns(t *testing.T) {
	t.Setenv("TZ", "")
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	cases.Check(t, "dsn/"+k.Name+".txt", func(t *testing.T, in ...string) string {
		dsn := strings.ReplaceAll(in[0], "$PWD", wd)
		target, err := k.Target(dsn)
		if err != nil {
			if strings.Contains(err.Error(), "s3cret") || !strings.HasPrefix(err.Error(), k.Name+": ") || errors.Unwrap(err) != nil {
				t.Errorf("%s: %v", dsn, err)
			}
			return "error: " + err.Error()
		}
		text := target.DataSource + " {" + target.Settings + "}"
		if target.AutocommitOff {
			text += " autocommit-off"
		}
		if target.NoSideConnection {
			text += " no-side-connection"
		}
		if target.File != "" {
			text += " file " + target.File
		}
		return strings.ReplaceAll(text, wd, "$PWD")
	})
}

// The code reads the documented list, with a reason for each code.
func (k *Kit) neutral(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("../../testdata/dsn/" + k.Name + "-neutral.txt")
	if err != nil {
		t.Fatal(err)
	}
	names := 0
	for line := range strings.Lines(string(list)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "# ") {
			continue
		}
		name, reason, _ := strings.Cut(line, " ")
		if reason == "" || name != strings.ToLower(name) || !k.Neutral[name] {
			t.Errorf("%q has no reason, is not in lower case, or is not read", line)
		}
		names++
	}
	if names != len(k.Neutral) {
		t.Errorf("the list has %d parameters, the code %d", names, len(k.Neutral))
	}
}

func (k *Kit) log(t *testing.T) {
	t.Parallel()
	db := testdb.NewLog(t, k.Name)
	log, err := txlog.Open(t.Context(), k.Name, db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	target, err := k.Target(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	if log.Driver() != k.Name || log.Location() != target.DataSource {
		t.Errorf("the log is in %s at %s, the target at %s", log.Driver(), log.Location(), target.DataSource)
	}
	if _, err := log.Stats(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := txlog.Open(t.Context(), k.Name, k.BadDSN); err == nil {
		t.Error("a DSN that cannot be read was accepted")
	}
}

// Writes through NewConnector are delivered and refused as through Register, for the package's own
// connector, for one of a DSN with a data source name, and for the bare driver's.
func (k *Kit) connector(t *testing.T) {
	t.Parallel()
	for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
		db := k.DB(t)
		bare := db.Open(t)
		Must(t, bare, k.Schema...)
		log, err := txlog.Open(t.Context(), k.Name, testdb.NewLog(t, k.Name).DSN)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = log.Close() })
		target, err := k.Target(k.WithParam(db.DSN, "bedDataSource=x"))
		if err != nil || target.DataSource != "x" {
			t.Fatalf("named %q, %v", target.DataSource, err)
		}
		own := delivery.Target{Connector: bareConnector{bare.Driver(), db.DSN}, DataSource: target.DataSource}
		for i, target := range []delivery.Target{target, own} {
			counters := new(bedsql.Counters)
			c, err := k.NewConnector(target, bedsql.Config{Storage: log, Guarantee: guarantee, Counters: counters})
			if err != nil {
				t.Fatal(err)
			}
			pool := sql.OpenDB(c)
			insert := "INSERT INTO t (id, n) VALUES (" + []string{"70", "71"}[i] + ", 7)"
			Must(t, pool, insert)
			if _, err := pool.ExecContext(t.Context(), insert); err == nil {
				t.Errorf("connector %d: a row was inserted twice", i)
			}
			if err := pool.Close(); err != nil {
				t.Error(err)
			}
			if delivered, refused := counters.Delivered.Load(), counters.Refused.Load(); delivered != 1 || refused != 1 {
				t.Errorf("connector %d: %d writes were counted as delivered, %d as refused, want 1 and 1", i, delivered, refused)
			}
		}
		stats, err := log.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := len(stats); n != 0 {
			t.Errorf("the log keeps entries of %d data sources: %+v", n, stats)
		}
	}
}

// bareConnector dials a driver by its DSN.
type bareConnector struct {
	driver driver.Driver
	dsn    string
}

func (c bareConnector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }
func (c bareConnector) Driver() driver.Driver                        { return c.driver }

func (k *Kit) takesWrites(t *testing.T) {
	t.Parallel()
	if err := Raw(t, Conn(t, k.DB(t).Open(t)), func(c driver.Conn) error { return k.Dialect.Writable(t.Context(), c) }); err != nil {
		t.Errorf("a database that takes writes said %v", err)
	}
}

// classOf is the class of err as testdata/ writes it.
func (k *Kit) classOf(err error) string {
	if err == nil {
		return "no error"
	}
	return k.Dialect.Classify(err).String()
}

func (k *Kit) classIs(t *testing.T, what string, err error, want dialect.Class) {
	t.Helper()
	if got := k.classOf(err); got != want.String() {
		t.Errorf("%s: %T %v is %s, want %v", what, err, err, got, want)
	}
}

// This tests every listed code, and some unlisted ones.
func (k *Kit) codes(t *testing.T) {
	t.Parallel()
	means := map[string]string{"mistake": "refused", "outage": "retryable"}
	seen := map[string]bool{}
	for _, c := range cases.Read(t, "errors/"+k.Name+".txt") {
		for code := range strings.FieldsSeq(c.In[0]) {
			if seen[code] {
				t.Errorf("%s: %s is listed twice", c.Place, code)
			}
			seen[code] = true
			first, last, isRange := strings.Cut(code, "-")
			ends := []string{first}
			if isRange {
				ends = append(ends, last)
			}
			for _, code := range ends {
				if got, want := k.Code(code).String(), cmp.Or(means[c.Want], c.Want); got != want {
					t.Errorf("%s: %s is %s, want %s", c.Place, code, got, want)
				}
			}
		}
	}
	cases.Check(t, "errors/"+k.Name+"-codes.txt", func(_ *testing.T, in ...string) string { return k.Code(in[0]).String() })
}

// The lists come from the servers themselves: a gap would call a final error "accepted".
func (k *Kit) own(t *testing.T) {
	t.Parallel()
	for list, codes := range k.Own(t) {
		if len(codes) < 50 {
			t.Errorf("%s has %d errors", list, len(codes))
		}
		for _, code := range codes {
			if class := k.Code(code); class == dialect.Unclassified {
				t.Errorf("%s: %s is not in errors.txt", list, code)
			}
		}
	}
}

// These are the database's own answers to statements.
func (k *Kit) statements(t *testing.T) {
	t.Parallel()
	db := k.DB(t).Open(t)
	Must(t, db, k.Schema...)
	cases.Check(t, "errors/"+k.Name+"-statements.txt", func(_ *testing.T, in ...string) string {
		_, err := db.Exec(in[0])
		if k.Dialect.Mistaken(err) {
			return "mistake"
		}
		return k.classOf(err)
	})
}

func (k *Kit) noAnswer(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		io.EOF, io.ErrUnexpectedEOF, context.DeadlineExceeded, context.Canceled, errors.New("whatever"),
		&net.OpError{Op: "write", Err: errors.New("broken pipe")}, &net.OpError{Op: "read", Err: errors.New("reset")},
	} {
		k.classIs(t, "no answer", err, dialect.Unknown)
	}
	k.classIs(t, "the driver's promise", driver.ErrBadConn, k.BadConn)
}

func (k *Kit) misfits(t *testing.T) {
	t.Parallel()
	target := k.DB(t)
	Must(t, target.Open(t), k.Schema...)
	for _, mode := range k.Modes {
		db := Open(t, k.Name, k.WithParam(target.DSN, mode))
		for _, call := range k.Misfits {
			_, err := db.Exec(call.SQL, call.Args...)
			k.classIs(t, mode+": "+call.SQL, err, dialect.Refused)
			rows, err := db.Query(call.SQL, call.Args...)
			if err == nil {
				for rows.Next() {
				}
				err = rows.Err()
				_ = rows.Close()
			}
			k.classIs(t, mode+", by Query: "+call.SQL, err, dialect.Refused)
		}
	}
}

// Misfit is a call with unfitting arguments.
func Misfit(text string, args ...any) Call { return Call{text, args} }

// Call is a statement with its arguments.
type Call struct {
	SQL  string
	Args []any
}

func (k *Kit) failedDial(t *testing.T) {
	t.Parallel()
	for _, dsn := range k.Unreachable {
		target, err := k.Target(dsn)
		if err != nil {
			t.Fatal(err)
		}
		db := sql.OpenDB(target.Connector)
		k.classIs(t, dsn, db.Ping(), dialect.Unreachable)
		_ = db.Close()
	}
}

// After an error the dialect reports the true state of an open transaction.
func (k *Kit) lost(t *testing.T) {
	t.Parallel()
	lost := k.Dialect.TransactionLost
	if lost == nil {
		return // a dialect whose transactions are never lost
	}
	db := k.DB(t).Open(t)
	Must(t, db, k.Schema...)
	Must(t, Conn(t, db), k.Hold...)
	c := Conn(t, db)
	if k.Server != nil {
		Must(t, c, k.Server.LockTimeout)
	}
	cases.Check(t, "lost/"+k.Name+".txt", func(t *testing.T, in ...string) string {
		Must(t, c, "BEGIN", "INSERT INTO t (id, n) VALUES (10, 1)")
		_, cause := c.ExecContext(t.Context(), in[0])
		if cause == nil {
			t.Fatalf("%s gives no error", in[0])
		}
		var said, kept bool
		_ = Raw(t, c, func(dc driver.Conn) error {
			said = lost(t.Context(), dc, cause)
			return nil
		})
		if err := c.QueryRowContext(t.Context(), "SELECT COUNT(*) = 1 FROM t WHERE id = 10").Scan(&kept); err != nil {
			t.Fatal(err)
		}
		if said == kept {
			t.Errorf("after %v the transaction is said to be lost: %t; what it wrote is there: %t", cause, said, kept)
		}
		if _, err := c.ExecContext(t.Context(), "ROLLBACK"); (err != nil) != (said && k.RollbackFails) {
			t.Errorf("after %v and the question ROLLBACK gives %v", cause, err)
		}
		return map[bool]string{true: "lost", false: "lives"}[said]
	})
}
