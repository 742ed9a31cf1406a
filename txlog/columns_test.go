package txlog

import (
	"database/sql"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

func TestTheColumnsAreThoseOfEachSchema(t *testing.T) {
	t.Parallel()
	var want []string
	for _, c := range columns {
		want = append(want, c.name)
	}
	for _, f := range []sqltext.Flavor{sqltext.MySQL, sqltext.Postgres, sqltext.SQLite} {
		var has []string
		for _, c := range logTables(f)[0].Columns {
			has = append(has, c.Name)
		}
		if !slices.Equal(has, want) {
			t.Errorf("%s: the schema has %v, the table of columns %v", f, has, want)
		}
	}
}

func TestEachColumnNamesTheStatementsThatChangeIt(t *testing.T) {
	t.Parallel()
	assigned := regexp.MustCompile(`(?:SET |,\s+)"?(\w+)"? = `)
	for _, k := range []kind{renewOwned, locateOwned, releaseOwned, takeRows, retryRows, parkRows, amendRow, amendUnit} {
		var want, has []string
		for _, c := range columns {
			if slices.Contains(c.by, k) {
				want = append(want, c.name)
			}
		}
		for _, m := range assigned.FindAllStringSubmatch(shape{kind: k, rows: 1}.text(sqltext.SQLite), -1) {
			has = append(has, m[1])
		}
		slices.Sort(has)
		slices.Sort(want)
		if !slices.Equal(has, want) {
			t.Errorf("statement %q sets %v, the table of columns says %v", k, has, want)
		}
	}
}

// read reads the content of a column.
func read(column string, f func(*reading, sql.NullString)) reading {
	r := reading{unit: &Unit{}}
	f(&r, sql.NullString{String: column, Valid: true})
	return r
}

// A writer's values are read unchanged.
func FuzzWhatIsKeptInAColumnIsReadAsItWas(f *testing.F) {
	f.Add("UPDATE t SET n = 1", `[1]`, "time_zone=UTC", "app.bed_receipt", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add("-- base64 x", `[]`, `{"settings":"`, "a\"\\\n", "\u2028")
	f.Add("\x00", `[{"prepared":1}]`, "", "", "")
	f.Add("\xff-- base64 ", "", `{"settings":"x"}`, "<>&", " ")
	f.Fuzz(func(t *testing.T, sql, params, settings, place, trace string) {
		column, _ := encode(&entry.Statement{SQL: sql})
		if r := read(column, (*reading).readSQL); r.problem != nil || r.first.SQL != sql || !entry.StorableText(column) {
			t.Errorf("the statement %q is kept as %q and read as %q, %v", sql, column, r.first.SQL, r.problem)
		}
		if params == "" || strings.HasPrefix(params, "[") && params != "[]" {
			for _, prepared := range []bool{false, true} {
				for _, required := range []entry.Requirement{{}, entry.Exactly(0), entry.AtLeast(int64(len(params) + 1))} {
					want := entry.Statement{Params: params, Prepared: prepared, Required: required}
					_, column := encode(&want)
					if r := read(column, (*reading).readParams); r.problem != nil || r.first != want {
						t.Errorf("the parameters %q are kept as %q and read as %+v, %v", params, column, r.first, r.problem)
					}
				}
			}
		}
		if !entry.StorableText(settings) || !entry.StorableText(place) || !entry.StorableText(trace) {
			return // refused by validate
		}
		u := Unit{Settings: settings, Session: place, Place: place, TraceParent: trace}
		r := read(encodeSettings(&u), (*reading).readSettings)
		if got := r.unit; r.problem != nil || got.Settings != settings || got.Place != place || got.Session != place || got.TraceParent != trace {
			t.Errorf("%q, %q and %q are kept as %q and read as %+v, %v", settings, place, trace, encodeSettings(&u), got, r.problem)
		}
	})
}

// A job without support for requirements reads them as parameters, and fails.
func TestOlderJobsCannotReadRequiredParameters(t *testing.T) {
	for _, s := range []entry.Statement{
		{Required: entry.Exactly(1)}, {Required: entry.AtLeast(2), Params: `[{"int64":"1"}]`}, {Required: entry.Exactly(0), Prepared: true},
	} {
		_, column := encode(&s)
		if _, err := entry.DecodeParams(strings.TrimPrefix(column, preparedStart)); err == nil {
			t.Errorf("%q can be read without the requirement", column)
		}
	}
	for _, column := range []string{`{"rows":"1","parameters":[]}`, `{"rows":"=1`, `{"rows":">=0","parameters":[]}`, `{"rows":"=x","parameters":[]}`} {
		if r := read(column, (*reading).readParams); r.problem == nil {
			t.Errorf("%q is read as %+v", column, r.first)
		}
	}
}

// Any content of a column is either refused or unambiguous: writing and reading it again gives the
// same.
func FuzzWhatIsFoundInAColumnMeansOneThing(f *testing.F) {
	for _, column := range []string{
		"UPDATE t SET n = 1", "-- base64 ", "-- base64 AA==", "-- base64 LS0gYmFzZTY0IA==", "-- base64 A\nA==", "time_zone=UTC", `{"settings":"a"}`, `{"settings":"a","receipts":"b","traceparent":"c"}`,
		`{"settings":null}`, `{"settings":1}`, `{"settings":"a","Settings":"b"}`, `{"settings":"\ud800"}`, `{"settings":"a"}}`, "{\"settings\":\"\xff\"}", `{"prepared":[1]}`, `{"prepared":`, "",
	} {
		f.Add(column)
	}
	f.Add(strings.Repeat("\x00", entry.MaxErrorText))
	f.Add(strings.Repeat("é", entry.MaxErrorText/2) + "\xff")
	f.Fuzz(func(t *testing.T, column string) {
		if r := read(column, (*reading).readSQL); r.problem == nil {
			text, _ := encode(&r.first)
			if again := read(text, (*reading).readSQL); again.problem != nil || again.first.SQL != r.first.SQL {
				t.Errorf("%q is read as %q, and that as %q, %v", column, r.first.SQL, again.first.SQL, again.problem)
			}
		}
		if r := read(column, (*reading).readSettings); r.problem == nil {
			again := read(encodeSettings(r.unit), (*reading).readSettings)
			if u, got := r.unit, again.unit; again.problem != nil || got.Settings != u.Settings || got.Session != u.Session || got.Place != u.Place || got.TraceParent != u.TraceParent {
				t.Errorf("%q is read as %+v, and that as %+v, %v", column, u, got, again.problem)
			}
		}
		if text := errorText(column); !entry.StorableText(text) || len(text) > entry.MaxErrorText || errorText(text) != text || entry.StorableText(column) && len(column) <= entry.MaxErrorText && text != column {
			t.Errorf("the error %q is kept as %q", column, text)
		}
	})
}
