package cli

import (
	"io"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/txlog"
)

func TestMistakesInTheCommandLineEndWithStatus2(t *testing.T) {
	h := newHarness(t, txlog.NewMemory())
	bare := map[string]bool{"schema": true, "lst": true, "frobnicate": true} // these know no -c
	for _, tc := range []struct{ args, want string }{
		{"lst", `unknown command "lst", did you mean list?`},
		{"frobnicate", `unknown command "frobnicate"`},
		{"list --parkd", "unknown flag: --parkd"},
		{"list extra", `list takes no argument, "extra" was given`},
		{"list -o xml", "table or json"},
		{"list --older-than soon", "invalid argument"},
		{"list --older-than -5m", "not a time such as 90s, 5m, 36h or 7d"},
		{"show", "show takes one ID"},
		{"show a b", "show takes one ID"},
		{"retry", "retry takes either IDs or --parked"},
		{"retry a --parked", "retry takes either IDs or --parked"},
		{"retry a --data-source x", "either IDs or --parked"},
		{"list --state lost", "waiting, leased or parked"},
		{"pause", "pause takes NAME"},
		{"limit a", "limit takes NAME PER_SECOND"},
		{"limit a many", `"many" is not a number`},
		{"try", "try takes one ID"},
		{"watch --interval 1ms", "--interval must be"},
		{"retry --parked --older-than -1s", "not a time such as"},
		{"discard --parked --transaction= --yes --reason x", "--transaction is empty"},
		{"retry --parked --data-source=", "--data-source is empty"},
		{"park --state= --text x", "--state is empty"},
		{"list --text=", "--text is empty"},
		{"list --older-than 0", "--older-than is empty"},
		{"schema", "schema takes one database"},
		{"schema oracle", `"oracle" is no database`},
		{"schema mysql --log --targets", "--log and --targets exclude each other"},
		{"schema mysql --from 2", "--from 2 --to 2 is no upgrade"},
		{"schema mysql --from -1 --to 1", "--from -1 --to 1 is no upgrade"},
		{"schema mysql --to 3", "--from 0 --to 3 is no upgrade: the steps go from 0, no tables, to 2"},
		{"stats --log-level loud", `--log-level "loud" is unknown`},
		{"run --log-format xml", `--log-format "xml" is unknown`},
	} {
		args := strings.Fields(tc.args)
		var r run
		if bare[args[0]] {
			var err, out strings.Builder
			a := h.app
			a.Out, a.Err = &out, &err
			r = run{a.run(t.Context(), args), out.String(), err.String()}
		} else {
			r = h.run(t, args...)
		}
		if r.status != 2 || r.out != "" || !strings.HasPrefix(r.err, "bed-job: ") || !strings.Contains(r.err, tc.want) {
			t.Errorf("%s: %+v, want %q", tc.args, r, tc.want)
		}
	}
}

func TestSchemaPrintsWhatTheProgramRuns(t *testing.T) {
	for _, database := range []string{"mysql", "postgres", "sqlite"} {
		printed := func(flags ...string) string {
			var out strings.Builder
			a := &app{Out: &out, Err: &out}
			if status := a.run(t.Context(), append([]string{"schema", database}, flags...)); status != 0 {
				t.Errorf("%v: status %d, printed\n%s", flags, status, out.String())
			}
			return out.String()
		}
		log, err := txlog.Schema(database)
		if err != nil {
			t.Fatal(err)
		}
		receipts, err := attempt.TargetSchema(database)
		if err != nil {
			t.Fatal(err)
		}
		log = strings.TrimRight(log, "\n") + "\n"
		if got := printed("--log"); got != log {
			t.Errorf("--log printed\n%s", got)
		}
		if got := printed("--targets"); got != receipts {
			t.Errorf("--targets printed\n%s", got)
		}
		both := printed()
		before, after, ok := strings.Cut(both, log)
		mark, rest, ok2 := strings.Cut(after, receipts)
		if !ok || !ok2 || rest != "" || !strings.Contains(before, "-- ===== the transaction log") || !strings.Contains(mark, "-- ===== receipts and order keys: in each target") {
			t.Errorf("printed\n%s", both)
		}
		first, second := printed("--from", "0", "--to", "1"), printed("--from", "1", "--to", "2")
		for text, step := range map[string]string{"transaction_log (": first, "bed_receipt (": first, "bed_order_key (": second, "bed_order_queue (": second, "bed_order (": second} {
			text = "CREATE TABLE IF NOT EXISTS " + text
			if strings.Count(first+second, text) != 1 || !strings.Contains(step, text) {
				t.Errorf("%q is not once in its step: step 1\n%s\nstep 2\n%s", text, first, second)
			}
		}
		if got := printed("--from", "1", "--log"); strings.Contains(got, "bed_order (") || !strings.Contains(second, got) {
			t.Errorf("--from 1 --log printed\n%s", got)
		}
	}
}

func TestVersionSaysWhatItWasBuiltFrom(t *testing.T) {
	info := &debug.BuildInfo{
		Main:     debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}},
	}
	if got := versionText(info, ""); !strings.HasPrefix(got, "bed-job v1.2.3, revision abc with local changes, go1.") {
		t.Errorf("got %q", got)
	}
	if got := versionText(info, "v1.2.4"); !strings.HasPrefix(got, "bed-job v1.2.4, revision abc") {
		t.Errorf("a release says %q", got)
	}
	if got := versionText(nil, ""); !strings.HasPrefix(got, "bed-job (devel), go1.") {
		t.Errorf("got %q", got)
	}
	for _, arg := range []string{"version", "--version"} {
		var out strings.Builder
		status := (&app{Out: &out, Err: io.Discard}).run(t.Context(), []string{arg})
		if status != 0 || !strings.HasPrefix(out.String(), "bed-job ") || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%s: status %d, printed %q", arg, status, out.String())
		}
	}
}

func TestHelpNamesEveryCommand(t *testing.T) {
	var out strings.Builder
	a := &app{Out: &out, Err: &out}
	if status := a.run(t.Context(), nil); status != 0 {
		t.Errorf("status %d", status)
	}
	for _, command := range a.root().Commands() {
		if !strings.Contains(out.String(), "\n  "+command.Name()+" ") {
			t.Errorf("%s is missing in\n%s", command.Name(), out.String())
		}
	}
}

func TestTheDemoRunsWithTheRealCommands(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv(beMain, "1") // the demo runs its own program again
	var out, err strings.Builder
	a := &app{Out: &out, Err: &err, Getenv: env(nil), Now: time.Now, Open: openLog}
	if status := a.run(t.Context(), []string{"demo"}); status != 0 {
		t.Fatalf("status %d\n%s%s", status, out.String(), err.String())
	}
	// Leased or, once the lease is over, waiting.
	for _, want := range []string{`data source alice_bank, state \w+, verdict already applied,`, `data source bob_bank, state \w+, verdict not applied,`} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	for _, want := range []string{"$ bed-job list --parked\n01", "state parked", "Nothing is lost, nothing is there twice."} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

func TestDemoFitsOneScreenWidthAnd120Lines(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv(beMain, "1")
	for _, width := range []int{0, 80, 240} {
		var out, err strings.Builder
		a := &app{Out: &out, Err: &err, Getenv: env(nil), Now: time.Now, Open: openLog, OutTTY: width > 0, Width: func() int { return width }}
		if status := a.run(t.Context(), []string{"demo"}); status != 0 {
			t.Fatalf("status %d\n%s%s", status, out.String(), err.String())
		}
		limit := width
		if limit != 80 {
			limit = 100
		}
		if n := strings.Count(out.String(), "\n"); n >= 120 {
			t.Errorf("on %d columns it has %d lines", width, n)
		}
		for line := range strings.Lines(out.String()) {
			plain := regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(strings.TrimSuffix(line, "\n"), "")
			// A single long word, such as a path, stays whole.
			if n := utf8.RuneCountInString(plain); n > limit && len(strings.Fields(plain)) > 1 {
				t.Errorf("on %d columns a line has %d: %s", width, n, plain)
			}
		}
	}
}
