package differential

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
)

// A fixed case is a program that once showed a difference.
type fixed struct {
	name, parameters string
	guarantees       []bedsql.Guarantee
	program          []step
}

var guarantees = map[string][]bedsql.Guarantee{
	"at-least-once": {bedsql.AtLeastOnce},
	"exactly-once":  {bedsql.ExactlyOnce},
	"both":          {bedsql.AtLeastOnce, bedsql.ExactlyOnce},
}

// calls are the kinds of steps. A name that begins another one comes after it.
var calls = []string{"prepared exec", "prepared query", "exec", "query", "begin serializable", "begin read-only", "begin", "commit", "rollback"}

// fixedCases reads NAME.cases: "case NAME", "GUARANTEE: DSN PARAMETERS", then a
// step in each line, with its arguments behind " <- ".
func fixedCases(t *testing.T, driver string) (all []fixed) {
	t.Helper()
	for _, line := range lines(t, driver+".cases") {
		if name, ok := strings.CutPrefix(line, "case "); ok {
			all = append(all, fixed{name: name})
			continue
		}
		if len(all) == 0 {
			t.Fatalf("%s.cases: %q stands before the first case", driver, line)
		}
		c := &all[len(all)-1]
		if c.guarantees == nil {
			guarantee, parameters, _ := strings.Cut(line, ": ")
			if c.guarantees, c.parameters = guarantees[guarantee], parameters; c.guarantees == nil {
				t.Fatalf("%s.cases: %q names no guarantee", driver, line)
			}
			continue
		}
		one, ok := readStep(line)
		if !ok {
			t.Fatalf("%s.cases: %q is no step", driver, line)
		}
		c.program = append(c.program, one)
	}
	return all
}

func readStep(line string) (step, bool) {
	for _, call := range calls {
		if line == call {
			return step{do: call}, true
		}
		if text, ok := strings.CutPrefix(line, call+" "); ok {
			text, list, _ := strings.Cut(text, " <- ")
			args, ok := arguments(list)
			return step{do: call, sql: text, args: args}, ok
		}
	}
	return step{}, false
}

// arguments reads a list in JSON.
func arguments(list string) (args []any, ok bool) {
	if list == "" {
		return nil, true
	}
	d := json.NewDecoder(strings.NewReader(list))
	d.UseNumber()
	if d.Decode(&args) != nil {
		return nil, false
	}
	for i, arg := range args {
		if n, is := arg.(json.Number); is {
			whole, err := n.Int64()
			if err != nil {
				return nil, false
			}
			args[i] = whole
		}
	}
	return args, true
}

func TestKnownDifferencesFromTheBareDriverStayFixed(t *testing.T) {
	t.Parallel()
	if err := register(); err != nil {
		t.Fatal(err)
	}
	for _, driver := range []string{mysql, postgres, sqlite} {
		if testing.Short() && driver != sqlite {
			continue
		}
		for _, c := range fixedCases(t, driver) {
			for _, guarantee := range c.guarantees {
				t.Run(fmt.Sprintf("%s/%s/%d", driver, c.name, guarantee), func(t *testing.T) {
					t.Parallel()
					p := pair{driver: driver, parameters: c.parameters, guarantee: guarantee, schema: schema(t, driver)}
					difference, at, err := p.run(c.program, 1)
					if err != nil {
						t.Fatal(err)
					}
					if difference != "" {
						t.Fatalf("after these steps:\n  %s\n%s", join(c.program[:at+1]), difference)
					}
				})
			}
		}
	}
}
