package upgrade

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/internal/test/leaks"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/upgrade/entries"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaks.Patient(m)) }

var update = flag.Bool("update", false, "store the log that this version writes")

// olderDir is the environment variable with the directory of an older version's bed-job and leave,
// see scripts/test-upgrade.sh.
const olderDir = "BED_TEST_OLDER"

// A site is a log and a target with the application's table.
type site struct {
	t           *testing.T
	log, target testdb.DB
}

func newSite(t *testing.T, log testdb.DB) *site {
	t.Helper()
	s := &site{t, log, testdb.New(t, log.Driver)}
	s.exec(s.target, entries.Tables...)
	return s
}

func (s *site) exec(db testdb.DB, statements ...string) {
	s.t.Helper()
	pool := db.Open(s.t)
	for _, statement := range statements {
		if _, err := pool.ExecContext(s.t.Context(), statement); err != nil {
			s.t.Fatalf("%s: %v", statement, err)
		}
	}
}

// migrate brings the tables from a step to another, as a migration tool would.
func (s *site) migrate(from, to int) {
	s.t.Helper()
	f := sqltext.FlavorOf(s.log.Driver)
	log, err := txlog.Schema(s.log.Driver)
	if err != nil {
		s.t.Fatal(err)
	}
	target, err := attempt.TargetSchema(s.log.Driver)
	if err != nil {
		s.t.Fatal(err)
	}
	s.exec(s.log, tables.Steps(f, log, from, to)...)
	s.exec(s.target, tables.Steps(f, target, from, to)...)
}

func (s *site) writer() *entries.Writer {
	s.t.Helper()
	w, err := entries.Open(s.t.Context(), s.log.Driver, s.log.DSN, s.target.DSN)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := w.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return w
}

func (s *site) leave() {
	s.t.Helper()
	if err := s.writer().Leave(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

// deliver has this version's job deliver all entries.
func (s *site) deliver() {
	s.t.Helper()
	storage, err := txlog.Open(s.t.Context(), s.log.Driver, s.log.DSN, txlog.WithoutCreate())
	if err != nil {
		s.t.Fatal(err)
	}
	defer storage.Close()
	target, err := testdb.By[func(string) (delivery.Target, error)]{MySQL: mysql.Target, Postgres: postgres.Target, SQLite: sqlite.Target}.For(s.target.Driver)(s.target.DSN)
	if err != nil {
		s.t.Fatal(err)
	}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	s.untilEmpty(func(dataSources []string) {
		targets := asyncjob.Targets{}
		for _, name := range dataSources {
			targets[name] = target
		}
		job, err := asyncjob.New(storage, targets, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, Logger: quiet})
		if err != nil {
			s.t.Fatal(err)
		}
		defer job.Close()
		if _, err := job.RunOnce(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	})
}

// untilEmpty has a job make rounds until the log is empty. In the first round it knows only one data
// source, so that a part of each group is delivered before the other one.
func (s *site) untilEmpty(round func(dataSources []string)) {
	s.t.Helper()
	waiting := "SELECT id, parked, last_error FROM transaction_log"
	pool := s.log.Open(s.t)
	var left [][]string
	for n := range 30 {
		round(entries.DataSources[:min(n+1, len(entries.DataSources))])
		var err error
		if left, err = tables.Texts(s.t.Context(), pool, waiting); err != nil {
			s.t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		// As an operator's retry does: a job looks at a group again after a minute.
		if _, err := pool.ExecContext(s.t.Context(), "UPDATE transaction_log SET next_try_time = 0 WHERE lease_token IS NULL"); err != nil {
			s.t.Fatal(err)
		}
	}
	s.t.Fatalf("these entries stay in the log: %q", left)
}

// isDelivered compares the application's rows with what the entries make of them.
func (s *site) isDelivered() {
	s.t.Helper()
	got := map[string]string{}
	rows, err := tables.Texts(s.t.Context(), s.target.Open(s.t), "SELECT id, n, note FROM account")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, row := range rows {
		got[row[0]] = row[1] + " " + row[2]
	}
	if !maps.Equal(got, entries.Delivered) {
		s.t.Errorf("the rows are %q, want %q", got, entries.Delivered)
	}
	replayed, err := s.writer().Resend(s.t.Context())
	if err != nil || !replayed {
		s.t.Errorf("a request that was sent again: replayed %v, %v", replayed, err)
	}
}

// Logs that earlier versions wrote, with entries of each kind, are in testdata. Their first line is
// the step of the tables.
func TestStoredLogsAreDelivered(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, file := range stored(t, db.Driver) {
			t.Run(filepath.Base(file), func(t *testing.T) {
				t.Parallel()
				s := newSite(t, testdb.New(t, db.Driver))
				s.load(file)
				s.deliver()
				s.isDelivered()
			})
		}
	})
}

// A job of an older version reads entries of the form that its own version stored.
func TestEntriesKeepTheirStoredForm(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := newSite(t, db)
		s.leave()
		got := s.dump()
		files := stored(t, db.Driver)
		if *update {
			name := fmt.Sprintf("testdata/%s-%d.jsonl", db.Driver, len(files)+1)
			if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		want, err := os.ReadFile(files[len(files)-1])
		if err != nil {
			t.Fatal(err)
		}
		if got, want := forms(got), forms(string(want)); !slices.Equal(got, want) {
			t.Errorf("this version stores entries in another form:\n%s\nIf jobs of the last release read it, or CHANGELOG.md says to upgrade jobs first, add it with -update. It was\n%s",
				without(got, want), without(want, got))
		}
	})
}

// The whole of it, with an older version's programs: its application's entries and this version's
// job, and this version's entries and its job.
func TestOlderVersionsProgramsShareTheLog(t *testing.T) {
	t.Parallel()
	older := os.Getenv(olderDir)
	if older == "" {
		t.Skip("scripts/test-upgrade.sh builds the programs of an older version")
	}
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		// run accepts one exit status besides 0.
		run := func(t *testing.T, status int, name string, args ...string) {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), filepath.Join(older, name), args...)
			if out, err := cmd.CombinedOutput(); err != nil && cmd.ProcessState.ExitCode() != status {
				t.Fatalf("the older %s: %v\n%s", name, err, out)
			}
		}
		for name, before := range map[string]int{"tables first": tables.NewestStep, "tables later": 0} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newSite(t, testdb.New(t, db.Driver))
				s.migrate(0, before)
				run(t, 0, "leave", s.log.Driver, s.log.DSN, s.target.DSN)
				s.migrate(0, tables.NewestStep)
				s.deliver()
				s.isDelivered()
			})
		}
		t.Run("and back", func(t *testing.T) {
			t.Parallel()
			s := newSite(t, testdb.New(t, db.Driver))
			s.leave()
			s.untilEmpty(func(dataSources []string) {
				config := fmt.Sprintf("transactionLogDataSource: {driver: %s, dsn: %q}\njobConfig: {maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0}\ntargetDataSource:\n", s.log.Driver, s.log.DSN)
				for _, name := range dataSources {
					config += fmt.Sprintf("  %s: {driver: %s, dsn: %q}\n", name, s.target.Driver, s.target.DSN)
				}
				file := filepath.Join(t.TempDir(), "bed-job.yaml")
				if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
					t.Fatal(err)
				}
				unknown := len(entries.DataSources) - len(dataSources) // 1 is the status for an unknown data source, too
				run(t, unknown, "bed-job", "run", "--once", "-c", file)
			})
			s.isDelivered()
		})
	})
}

// stored returns the files of a database, the oldest first.
func stored(t *testing.T, driver string) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/" + driver + "-*.jsonl")
	if err != nil || len(files) == 0 && !*update {
		t.Fatalf("no log of %s is stored: %v", driver, err)
	}
	return files
}

// dumped are the stored tables. Those for operators hold no entries.
var dumped = []string{"bed_log", "transaction_log", "bed_order_key", "bed_order_queue"}

// dump returns the log's rows, a line each, after a line with the step of the tables.
func (s *site) dump() string {
	s.t.Helper()
	out := fmt.Sprintf("{\"step\":\"%d\"}\n", tables.NewestStep)
	pool := s.log.Open(s.t)
	for _, table := range dumped {
		rows, err := pool.QueryContext(s.t.Context(), "SELECT * FROM "+table+" ORDER BY 1")
		if err != nil {
			s.t.Fatal(err)
		}
		defer rows.Close()
		names, err := rows.Columns()
		if err != nil {
			s.t.Fatal(err)
		}
		for rows.Next() {
			cells, to := make([]sql.NullString, len(names)), make([]any, len(names))
			for i := range cells {
				to[i] = &cells[i]
			}
			if err := rows.Scan(to...); err != nil {
				s.t.Fatal(err)
			}
			line := map[string]any{"table": table}
			for i, c := range cells {
				line[names[i]] = nil
				if c.Valid {
					line[names[i]] = strings.ReplaceAll(c.String, s.target.Name, "{target}")
				}
			}
			text, err := json.Marshal(line)
			if err != nil {
				s.t.Fatal(err)
			}
			out += string(text) + "\n"
		}
		if err := rows.Err(); err != nil {
			s.t.Fatal(err)
		}
	}
	return locales.ReplaceAllString(out, "$1=C") // which every server has
}

// load makes the tables as a file's version did, puts its rows there, and upgrades the tables.
func (s *site) load(file string) {
	s.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	pool := s.log.Open(s.t)
	lines := bufio.NewScanner(bytes.NewReader(text))
	step := 0
	for lines.Scan() {
		var row map[string]any
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			s.t.Fatal(err)
		}
		if step == 0 {
			if _, err := fmt.Sscan(row["step"].(string), &step); err != nil {
				s.t.Fatal(err)
			}
			s.migrate(0, step)
			continue
		}
		var names, marks []string
		var args []any
		for _, name := range slices.Sorted(maps.Keys(row)) {
			if name == "table" {
				continue
			}
			value := row[name]
			if text, ok := value.(string); ok {
				value = strings.ReplaceAll(text, "{target}", s.target.Name)
			}
			args = append(args, value)
			mark := "?"
			if s.log.Driver == testdb.DriverPostgres {
				mark = fmt.Sprintf("$%d", len(args))
			}
			marks = append(marks, mark)
			names = append(names, testdb.By[string]{MySQL: "`" + name + "`", Postgres: `"` + name + `"`, SQLite: `"` + name + `"`}.For(s.log.Driver))
		}
		insert := fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", row["table"], strings.Join(names, ", "), strings.Join(marks, ", "))
		if _, err := pool.ExecContext(context.Background(), insert, args...); err != nil {
			s.t.Fatalf("%s: %v", insert, err)
		}
	}
	s.migrate(step, tables.NewestStep)
}

var (
	uuids   = regexp.MustCompile(`(?:[0-9a-f]{2}-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	hashes  = regexp.MustCompile(`[0-9a-f]{30,}|[A-Za-z0-9+/_-]{30,}=*`)
	locales = regexp.MustCompile(`(lc_\w+)=[^;\\"]*`)
	session = regexp.MustCompile(`(\\"session\\":\\")[^"\\]*`)
	numbers = regexp.MustCompile(`[0-9]{6,}`)
	ages    = regexp.MustCompile(`(\\"contended_from\\":)[0-9]+`)
	errors  = regexp.MustCompile(`"last_error":"[^"\\]*(\\.[^"\\]*)*"`)
)

// forms returns the lines without what differs from run to run, and between servers.
func forms(text string) []string {
	text = ages.ReplaceAllString(session.ReplaceAllString(text, "$1…"), "${1}N")
	text = errors.ReplaceAllString(text, `"last_error":"…"`)
	text = hashes.ReplaceAllString(uuids.ReplaceAllString(text, "UUID"), "HASH")
	return slices.Sorted(strings.Lines(numbers.ReplaceAllString(text, "N")))
}

// without returns the lines of all that are not among others.
func without(all, others []string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(all), func(line string) bool { return slices.Contains(others, line) }), "")
}
