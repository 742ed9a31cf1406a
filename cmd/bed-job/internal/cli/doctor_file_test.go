package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestDoctorFindsWhatIsWrongWithTheFile(t *testing.T) {
	file := func(name string) testdb.DB {
		path := filepath.Join(t.TempDir(), name)
		return testdb.DB{Driver: "sqlite", DSN: "file:" + path + "?_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)", Name: path}
	}
	create := func() testdb.DB { return file("some.db") }
	install(t, create(), map[string]testdb.DB{"orders": create()}).right()
	pragma := func(p string) func(*testing.T, *installed) {
		return func(_ *testing.T, in *installed) { in.sources["orders"] = with(in.sources["orders"], "_pragma="+p) }
	}
	journal := func(mode string) func(*testing.T, *installed) {
		return func(_ *testing.T, in *installed) {
			path := filepath.Join(in.t.TempDir(), "target.db")
			in.sources["orders"] = testdb.DB{Driver: "sqlite", DSN: "file:" + path + "?_pragma=busy_timeout(5000)&_pragma=journal_mode(" + mode + ")", Name: path}
			in.exec(in.sources["orders"], "CREATE TABLE account (id INT)")
		}
	}
	cases := []wrongSetUp{
		{name: "the log in the target's file", check: "shared-file", remedy: "file of its own", make: func(_ *testing.T, in *installed) { in.sources["orders"] = in.log }},
		{name: "a name derived from a loopback address", check: "name", remedy: "bedDataSource", make: func(_ *testing.T, in *installed) {
			in.sources = map[string]testdb.DB{`"localhost:5432/orders"`: in.sources["orders"]}
		}},
		{name: "no sync", check: "synchronous", remedy: "synchronous(full)", make: pragma("synchronous(off)")},
		{name: "no sync at commit", check: "synchronous", remedy: "synchronous(full)", make: pragma("synchronous(normal)")},
		{name: "no journal", check: "journal_mode", remedy: "journal_mode(wal)", make: journal("off")},
		{name: "a journal in memory", check: "journal_mode", remedy: "journal_mode(wal)", make: journal("memory")},
		{name: "no patience", check: "busy_timeout", remedy: "busy_timeout(5000)", make: func(_ *testing.T, in *installed) {
			in.sources["orders"] = testdb.DB{Driver: "sqlite", DSN: "file:" + in.sources["orders"].Name}
		}},
		{name: "a lock for ever", check: "locking_mode", remedy: "remove", make: pragma("locking_mode(exclusive)")},
		{name: "a session that only reads", check: "read-only", remedy: "query_only", make: pragma("query_only(1)")},
		{name: "a copy of the log as a target", check: "identity", remedy: "DELETE FROM bed_log", make: func(t *testing.T, in *installed) {
			in.exec(in.log, "PRAGMA wal_checkpoint(truncate)")
			text, err := os.ReadFile(in.log.Name)
			if err != nil {
				t.Fatal(err)
			}
			copied := create()
			write(t, copied.Name, string(text))
			in.sources["orders"] = copied
		}},
		{name: "no data source", check: "file", remedy: "fix the line", make: func(_ *testing.T, in *installed) { in.sources = nil }},
	}
	for _, c := range append(cases, anywhere()...) {
		c.run(t, create(), create)
	}
}

func TestDoctorComparesTheClocks(t *testing.T) {
	file := func() testdb.DB {
		path := filepath.Join(t.TempDir(), "some.db")
		return testdb.DB{Driver: "sqlite", DSN: "file:" + path + "?_pragma=busy_timeout(5000)", Name: path}
	}
	in := install(t, file(), map[string]testdb.DB{"orders": file()})
	for _, off := range []time.Duration{time.Hour, -time.Minute} {
		status, report, text := in.doctor(app{Now: func() time.Time { return time.Now().Add(off) }})
		if status != 1 || len(report.Findings) != 2 || report.Findings[0].Check != "clock" || report.Findings[1].Check != "clock" {
			t.Errorf("with a clock that is off by %v the status is %d:\n%s", off, status, text)
		}
	}
	if status, _, text := in.doctor(app{Now: func() time.Time { return time.Now().Add(2 * time.Second) }}); status != 0 {
		t.Errorf("a clock that is two seconds off is complained of:\n%s", text)
	}
}

func TestDoctorExitsWithThreeWhenItCannotLook(t *testing.T) {
	file := func() testdb.DB {
		path := filepath.Join(t.TempDir(), "some.db")
		return testdb.DB{Driver: "sqlite", DSN: "file:" + path + "?_pragma=busy_timeout(5000)", Name: path}
	}
	var out bytes.Buffer
	for _, args := range [][]string{{"doctor", "-c", "/nowhere.yaml"}, {"doctor", "--nonsense"}, {"doctor", "more"}} {
		a := app{Getenv: env(nil), Out: &out, Err: &out, Now: time.Now}
		if status := a.run(t.Context(), args); status != 3 {
			t.Errorf("bed-job %v ends with %d", args, status)
		}
	}
	for _, hostile := range []string{"\x1b[2J", "\u202e"} {
		in := install(t, file(), map[string]testdb.DB{"orders": file()})
		oldEntry(t, in, func(u *entry.Unit) { u.DataSource = "a" + hostile })
		config := filepath.Join(t.TempDir(), "bed-job.yaml")
		write(t, config, fmt.Sprintf("targetDataSource: {orders: {driver: sqlite, dsn: %q}}\ntransactionLogDataSource: {driver: sqlite, dsn: %q}\n", in.sources["orders"].DSN, in.log.DSN))
		out.Reset()
		a := app{Getenv: env(nil), Out: &out, Err: &out, Now: time.Now}
		if status := a.run(t.Context(), []string{"doctor", "-c", config}); status != 1 || strings.Contains(out.String(), hostile) {
			t.Errorf("status %d, printed %q", status, out.String())
		}
	}
}
