package differential

import (
	"fmt"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
)

// The wrapper asks some servers whether an error ended the transaction. That question must not
// change the session's report on its last statement.
func TestSessionAfterAnErrorMatchesTheBareDriver(t *testing.T) {
	t.Parallel()
	if err := register(); err != nil {
		t.Fatal(err)
	}
	for _, driver := range []string{mysql, postgres, sqlite} {
		if testing.Short() && driver != sqlite {
			continue
		}
		for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
			for _, begin := range []step{{do: "begin"}, {do: "exec", sql: "BEGIN"}} {
				t.Run(fmt.Sprintf("%s/%d/%s", driver, guarantee, begin), func(t *testing.T) {
					t.Parallel()
					p := pair{driver: driver, parameters: "url", guarantee: guarantee, schema: schema(t, driver)}
					if driver == sqlite {
						p.parameters = "file _pragma=busy_timeout(100)"
					}
					var questions []string
					for _, question := range lines(t, driver+".session") {
						text, only := strings.CutPrefix(question, "at-least-once: ")
						if !only || guarantee == bedsql.AtLeastOnce {
							questions = append(questions, text)
						}
					}
					program := afterEach(begin, lines(t, driver+".failing"), questions)
					difference, at, err := p.run(program, compareEvery)
					if err != nil {
						t.Fatal(err)
					}
					if difference != "" {
						t.Fatalf("after these steps:\n  %s\n%s", join(program[max(0, at-6):at+1]), difference)
					}
				})
			}
		}
	}
}

// afterEach makes each statement fail in a transaction with writes and reads. It does so once for
// each question, since a question would change the answer to the next.
func afterEach(begin step, failing, questions []string) (all []step) {
	exec := func(text string) step { return step{do: "exec", sql: text} }
	all = append(all, exec("INSERT INTO parent (id) VALUES (7)"))
	for _, text := range failing {
		for _, question := range questions {
			all = append(all, begin, exec("INSERT INTO number (d) VALUES (1), (2)"), step{do: "query", sql: "SELECT id FROM parent UNION ALL SELECT 1 UNION ALL SELECT 2"},
				exec(text), step{do: "query", sql: question})
			if begin.sql == "" {
				all = append(all, step{do: "rollback"})
			} else {
				all = append(all, exec("ROLLBACK"))
			}
		}
	}
	return all
}
