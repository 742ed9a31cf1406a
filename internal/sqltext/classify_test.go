package sqltext

import (
	"strings"
	"testing"
)

// A row says what a text means to a flavor. Hazards have tables of their own.
type row struct {
	text string
	want Class
}

// What most rows expect.
var (
	read       = Class{Kind: Read}
	locking    = Class{Kind: Read, Locks: true}
	readPins   = Class{Kind: Read, Pins: true}
	dml        = Class{Kind: DML}
	insert     = Class{Kind: DML, Insert: true}
	dmlNeeds   = Class{Kind: DML, NeedsSession: true}
	insNeeds   = Class{Kind: DML, Insert: true, NeedsSession: true}
	dmlPins    = Class{Kind: DML, Pins: true, NeedsSession: true}
	insPins    = Class{Kind: DML, Insert: true, Pins: true, NeedsSession: true}
	ddl        = Class{Kind: DDL}
	ddlCommits = Class{Kind: DDL, ImplicitCommit: true}
	session    = Class{Kind: Session, Pins: true}
	passing    = Class{Kind: Session}
	opaque     = Class{Kind: Opaque}
	opaquePins = Class{Kind: Opaque, Pins: true}
	empty      = Class{Kind: Empty}
	multi      = Class{Kind: Multi}
	multiDML   = Class{Kind: Multi, HasDML: true}
	multiPins  = Class{Kind: Multi, Pins: true}
	multiBoth  = Class{Kind: Multi, Pins: true, HasDML: true}
	begin      = Class{Kind: Begin}
	beginMySQL = Class{Kind: Begin, ImplicitCommit: true}
	commit     = Class{Kind: Commit}
	rollback   = Class{Kind: Rollback}
)

func savepoint(name string) Class        { return Class{Kind: Savepoint, Name: name} }
func rollbackTo(name string) Class       { return Class{Kind: RollbackTo, Name: name} }
func releaseSavepoint(name string) Class { return Class{Kind: ReleaseSavepoint, Name: name} }

var flavors = []struct {
	flavor Flavor
	name   string
	rows   []row
}{
	{ANSI, "ANSI", append(ansiRows, commonRows...)},
	{MySQL, "MySQL", append(mysqlRows, commonRows...)},
	{Postgres, "Postgres", append(postgresRows, commonRows...)},
	{SQLite, "SQLite", append(sqliteRows, commonRows...)},
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, f := range flavors {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			for _, r := range f.rows {
				if got := withoutHazards(Classify(f.flavor, r.text)); got != r.want {
					t.Errorf("%q\n\tis read as %+v\n\twant       %+v", r.text, got, r.want)
				}
			}
		})
	}
}

func withoutHazards(c Class) Class {
	c.Hazards = 0
	return c
}

// texts are those of all tables for the i-th of flavors.
func texts(i int) []string {
	var out []string
	for _, r := range flavors[i].rows {
		out = append(out, r.text)
	}
	for _, r := range hazardRows(flavors[i].flavor) {
		out = append(out, r.text)
	}
	return out
}

// decorations change nothing about what a text means.
var decorations = []struct{ before, after string }{
	{"", ""},
	{" \t\r\n\v\f", ""},
	{"\ufeff", ""},
	{"/* UPDATE t; '\" */", ""},
	{"-- DELETE FROM t; '\n", ""},
	{";; ;", ""},
	{"", "\n;"},
	{"", "\n;; -- x"},
	{"", "\n/* ; DELETE FROM t */ ; /* x */\n"},
	{"/**/ ", " "},
}

func TestDecorationDoesNotChangeTheClass(t *testing.T) {
	t.Parallel()
	for i, f := range flavors {
		for _, plain := range texts(i) {
			want := Classify(f.flavor, plain)
			for _, d := range decorations {
				text := d.before + plain + d.after
				if got := Classify(f.flavor, text); got != want {
					t.Errorf("%s: %q\n\tis read as %+v\n\twant       %+v", f.name, text, got, want)
				}
			}
		}
	}
}

func TestLetterCaseDoesNotChangeTheClass(t *testing.T) {
	t.Parallel()
	for i, f := range flavors {
		for _, as := range texts(i) {
			want := Classify(f.flavor, as)
			if want.Name != "" || strings.Contains(as, "$") || strings.Contains(as, "/*M!") {
				continue // names, tags and the mark of MariaDB keep their case
			}
			for _, text := range []string{strings.ToLower(as), strings.ToUpper(as)} {
				if got := Classify(f.flavor, text); got != want {
					t.Errorf("%s: %q\n\tis read as %+v\n\twant       %+v", f.name, text, got, want)
				}
			}
		}
	}
}

// One statement beside another is Multi, whatever both are.
func TestTwoStatementsAreMulti(t *testing.T) {
	t.Parallel()
	for _, f := range flavors {
		for _, r := range f.rows {
			if r.want.Kind == Empty || r.want.Kind == Multi {
				continue
			}
			got := Classify(f.flavor, "UPDATE t SET a = 1;"+r.text)
			want := Class{Kind: Multi, HasDML: true, ImplicitCommit: r.want.ImplicitCommit, Pins: r.want.Pins}
			switch r.want.Kind {
			case Read, DML, DDL:
			default:
				want.Pins = true
			}
			if got != want {
				t.Errorf("%s: an UPDATE, then %q\n\tis read as %+v\n\twant       %+v", f.name, r.text, got, want)
			}
		}
	}
}

// A text whose quote or comment does not end is still a write when it begins
// as one, and never a read that was understood.
func TestTruncatedTextsDoNotTurnIntoReads(t *testing.T) {
	t.Parallel()
	for _, f := range flavors {
		for _, r := range f.rows {
			for i := range len(r.text) {
				got := Classify(f.flavor, r.text[:i])
				if starts := r.text[:i]; strings.HasPrefix(starts, "UPDATE ") && got.Kind != DML && got.Kind != Multi {
					t.Errorf("%s: %q is read as %v", f.name, starts, got.Kind)
				}
			}
		}
	}
	for _, text := range []string{"SELECT 'a", `SELECT 1; COMMIT "x`, "COMMIT /* x"} {
		for _, f := range []Flavor{ANSI, MySQL, Postgres} {
			if got := Classify(f, text); got.Kind != Opaque && !(got.Kind == Multi && got.Pins) {
				t.Errorf("flavor %d: %q is read as %+v", f, text, got)
			}
		}
	}
}

func TestClassifyTakesNoMemory(t *testing.T) {
	for i, f := range flavors {
		for _, text := range texts(i) {
			if Classify(f.flavor, text).Name != "" {
				continue
			}
			if n := testing.AllocsPerRun(1, func() { Classify(f.flavor, text) }); n != 0 {
				t.Errorf("%s: %q takes %v allocations", f.name, text, n)
			}
		}
	}
}

// Time must not explode with the text: statements come from anywhere.
func TestHugeTextsAreReadInOnePass(t *testing.T) {
	t.Parallel()
	const n = 1 << 17
	for _, part := range []string{
		"(", ")", ";", "/*", "/*!", "$a", "$a$b", "E'", "'", "SET STATEMENT a=1 FOR ", "EXPLAIN ANALYZE ", "EXPLAIN (",
		"WITH a AS (", "set_config(", "BEGIN ", "CASE ", "INTO LOCAL ", "E'' -- \n", "--\n", "@@a.", "IF ",
		"UPDATE t SET a = ", "UPDATE t SET a = a ", "a = a, ", "(UPDATE t SET ", "CASE WHEN a THEN a END + ", "t.", "(SELECT a FROM t WHERE ",
		"INSERT INTO t (a) VALUES (1) ", "ON DUPLICATE KEY UPDATE a = ", "now(", "RETURNING id, ",
	} {
		text := strings.Repeat(part, n/len(part))
		for _, f := range flavors {
			Classify(f.flavor, text)
			Classify(f.flavor, "SELECT "+text)
			Classify(f.flavor, "UPDATE t SET "+text)
			Classify(f.flavor, "INSERT INTO t "+text)
			Mask(f.flavor, text)
			Classify(f.flavor, "CREATE TRIGGER "+text)
		}
	}
}

func TestKindsHaveNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for k := Read; k <= Empty; k++ {
		if s := k.String(); s == "" || s == "unknown" || seen[s] {
			t.Errorf("kind %d is called %q", k, s)
		}
		seen[k.String()] = true
	}
	if s := Kind(200).String(); s != "unknown" {
		t.Errorf("a kind that does not exist is called %q", s)
	}
}

// commonRows hold in every flavor.
var commonRows = []row{
	{"", empty},
	{" \n\t", empty},
	{";", empty},
	{" ; ;; -- x\n;", empty},
	{"/* UPDATE t SET a = 1 */", empty},

	{"INSERT INTO t (a) VALUES (1)", insert},
	{"INSERT INTO t SELECT * FROM u", insert},
	{"INSERT INTO t (a) VALUES (1) RETURNING id", insert},
	{"INSERT INTO t VALUES ('a;b', 'it''s; -- x', \"c;d\")", insert},
	{"UPDATE t SET a = 1", dml},
	{"UPDATE t SET a = 1;  -- x", dml},
	{"UPDATE t SET a = ? WHERE b = ?", dml},
	{"UPDATE t SET a = '/*', b = 1; /* */", dml},
	{"UPDATE t SET a = (SELECT max(b) FROM u)", dml},
	{"UPDATE t SET a = CASE WHEN b THEN 1 ELSE 2 END WHERE c", dml},
	{"DELETE FROM t WHERE a = 1", dml},
	{"DELETE FROM t WHERE EXISTS (SELECT 1 FROM u)", dml},
	{"MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN UPDATE SET b = 1", insert},
	{"WITH x AS (SELECT 1) UPDATE t SET a = 1", dml},
	{"WITH x AS (SELECT 1), y (a, b) AS (SELECT 1, 2) DELETE FROM t", dml},
	{"WITH RECURSIVE x AS (SELECT 1) INSERT INTO t SELECT * FROM x", insert},
	{"WITH x AS (SELECT 1) MERGE INTO t USING x ON a = b WHEN MATCHED THEN DELETE", insert},
	{"WITH x AS (WITH y AS (SELECT 1) SELECT * FROM y) DELETE FROM t", dml},
	{"(UPDATE t SET a = 1)", dml},
	{"UPDATE", dml},
	{"UPDATE t SET a = 'unterminated", dml},
	{"INSERT INTO t VALUES (1, 'x) ; SELECT 1", insert},

	{"SELECT 1", read},
	{"(SELECT 1) UNION (SELECT 2)", read},
	{"((SELECT 1))", read},
	{"SELECT 'DELETE FROM t; INSERT INTO u'", read},
	{"SELECT \"update\" FROM t -- ; DELETE FROM t", read},
	{"SELECT a /* ; */ FROM t", read},
	{"VALUES (1), (2)", read},
	{"WITH x AS (SELECT 1) SELECT * FROM x", read},
	{"WITH x AS (SELECT 1) (SELECT * FROM x)", read},
	{"WITH deleted AS (SELECT 1), updates AS (SELECT 2) SELECT * FROM deleted", read},
	{"WITH x AS (SELECT 1 AS a) SELECT a FROM x WHERE a IN (SELECT 1)", read},
	{"(WITH x AS (SELECT 1) SELECT * FROM x)", read},
	{"EXPLAIN UPDATE t SET a = 1", read},
	{"EXPLAIN SELECT 1", read},
	{"EXPLAIN WITH x AS (SELECT 1) DELETE FROM t", read},

	{"ROLLBACK", rollback},
	{"COMMIT", commit},
	{"COMMIT WORK", commit},
	{"ROLLBACK TRANSACTION", rollback},
	{"SAVEPOINT sp1", savepoint("sp1")},
	{"SAVEPOINT sp1 -- x", savepoint("sp1")},
	{"RELEASE SAVEPOINT sp1", releaseSavepoint("sp1")},
	{"RELEASE sp1", releaseSavepoint("sp1")},
	{"ROLLBACK TO SAVEPOINT sp1", rollbackTo("sp1")},
	{"ROLLBACK TO sp1", rollbackTo("sp1")},
	{"SAVEPOINT", opaque},
	{"SAVEPOINT 1", opaque},
	{"ROLLBACK TO", opaque},
	{"(COMMIT)", opaque},

	{"CALL p()", opaque},
	{"{call p()}", opaque},
	{"DO something()", opaque},
	{"KILL 1", opaque},
	{"BLAH BLAH", opaque},
	{"'UPDATE t'", opaque},
	{"\"UPDATE\" t", opaque},
	{"42", opaque},
	{"(", opaque},
	{"()", opaque},
	{"WITH", opaque},
	{"WITH x AS (SELECT 1)", opaque},
	{"WITH x AS (SELECT 1) nonsense", opaque},
	{"EXECUTED", opaque},
	{"SELECTED", opaque},

	{"UPDATE t SET a = 1; UPDATE t SET a = 2", multiDML},
	{"SELECT 1; SELECT 2", multi},
	{"SELECT 1; COMMIT", multiPins},
	{"SELECT 1; CALL p()", multiPins},
	{"; SELECT 1 ;; DELETE FROM t ; ", multiDML},
	{"SELECT 1; DELETE FROM t; SELECT 2; BLAH", multiBoth},
}
