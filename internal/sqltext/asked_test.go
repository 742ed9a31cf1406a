package sqltext

import "testing"

func TestAskedIsTheTextWithoutWhatOnlyCarriesIt(t *testing.T) {
	t.Parallel()
	const update = "UPDATE t SET n = n - 1 WHERE id = 1"
	for _, f := range []Flavor{MySQL, Postgres, SQLite} {
		for _, text := range []string{
			update + " /*traceparent='00-aa-01'*/", "/*dddbs='shop'*/ " + update, update + ";", update + "/*a*/ ; /*b*/", "\ufeff" + update,
			"-- name: Take :exec\n" + update + "\n", "UPDATE t\n\tSET n = n - 1 -- one\n  WHERE id = 1", "UPDATE/**/t/* x */SET n = n - 1 WHERE id = 1",
		} {
			if got := Asked(f, text); got != update {
				t.Errorf("%v: %q asks %q", f, text, got)
			}
		}
	}
	for text, want := range map[string]map[Flavor]string{
		"# who\nDELETE FROM t # x":                  {MySQL: "DELETE FROM t"},
		"UPDATE /*+ NO_ICP(t) */ /* x */ t SET a=1": {MySQL: "UPDATE /*+ NO_ICP(t) */ t SET a=1", Postgres: "UPDATE /*+ NO_ICP(t) */ t SET a=1", SQLite: "UPDATE /*+ NO_ICP(t) */ t SET a=1"},
		"/*!50000 UPDATE t /* x */ SET a=1 */":      {MySQL: "/*!50000 UPDATE t SET a=1 */"},
		"UPDATE t SET a=1 /*M!100100 , b=2 */":      {MySQL: "UPDATE t SET a=1 /*M!100100 , b=2 */", Postgres: "UPDATE t SET a=1 /*M!100100 , b=2 */"},
		"/* a /* b */ c */ DELETE FROM t":           {Postgres: "DELETE FROM t"},
		"UPDATE t SET a='/*x*/' , b='--', c='#'":    {MySQL: "UPDATE t SET a='/*x*/' , b='--', c='#'", Postgres: "UPDATE t SET a='/*x*/' , b='--', c='#'", SQLite: "UPDATE t SET a='/*x*/' , b='--', c='#'"},
		"UPDATE t SET a=$$/*x*/ -- $$ /*y*/":        {Postgres: "UPDATE t SET a=$$/*x*/ -- $$"},
		`UPDATE t SET a="/*x*/" /*y*/`:              {MySQL: `UPDATE t SET a="/*x*/"`, Postgres: `UPDATE t SET a="/*x*/"`},
		"UPDATE t SET a=1--1":                       {MySQL: "UPDATE t SET a=1--1", Postgres: "UPDATE t SET a=1"},
		// By the session's quoting this is a comment or a part of the literal.
		`UPDATE t SET a='\' /*x*/ , b=' '`: {MySQL: `UPDATE t SET a='\' /*x*/ , b=' '`, Postgres: `UPDATE t SET a='\' /*x*/ , b=' '`},
		"UPDATE t SET a='":                 {MySQL: "UPDATE t SET a='"},
	} {
		for f, want := range want {
			if got := Asked(f, text); got != want {
				t.Errorf("%v: %q asks %q, want %q", f, text, got, want)
			}
		}
	}
}
