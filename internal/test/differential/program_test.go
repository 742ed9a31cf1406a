package differential

import (
	"bufio"
	"embed"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
)

//go:embed testdata
var testdata embed.FS

// A step is one call of database/sql.
type step struct {
	do   string // exec, query, prepared exec, prepared query, begin, begin serializable, begin read-only, commit, rollback
	sql  string
	args []any
}

func (s step) String() string {
	if s.sql == "" {
		return s.do
	}
	text := fmt.Sprintf("%-14s %q", s.do, s.sql)
	for _, arg := range s.args {
		text += fmt.Sprintf(" %#v", arg)
	}
	return text
}

// A template is a statement without its values.
type template struct {
	sql         string
	weight      int
	atLeastOnce bool // not under ExactlyOnce
}

var (
	weightOf = regexp.MustCompile(`^(\d+) `)
	hole     = regexp.MustCompile(`\{(\w+)\}`)
	hasRows  = regexp.MustCompile(`(?i)^\s*(SELECT|SHOW|VALUES|TABLE|PRAGMA)\b|\bRETURNING\b`)
)

// lines reads a file of testdata without comments and empty lines; a line beginning with a blank
// continues the previous one.
func lines(t testing.TB, name string) (all []string) {
	t.Helper()
	file, err := testdata.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		switch line := scanner.Text(); {
		case line == "", strings.HasPrefix(line, "--"):
		case strings.HasPrefix(line, " "):
			all[len(all)-1] += "\n" + line
		default:
			all = append(all, line)
		}
	}
	return all
}

func templates(t testing.TB, driver string) (all []template) {
	t.Helper()
	for _, line := range lines(t, driver+".statements") {
		one := template{weight: 4}
		if m := weightOf.FindStringSubmatch(line); m != nil {
			one.weight, _ = strconv.Atoi(m[1])
			line = line[len(m[0]):]
		}
		one.sql, one.atLeastOnce = strings.CutPrefix(line, "at-least-once: ")
		all = append(all, one)
	}
	return all
}

// A generator makes programs for one database and guarantee.
type generator struct {
	*rand.Rand
	driver    string
	templates []template
	total     int
}

func newGenerator(t testing.TB, driver string, guarantee bedsql.Guarantee, seed uint64) *generator {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0)), driver: driver}
	for _, one := range templates(t, driver) {
		if one.atLeastOnce && guarantee == bedsql.ExactlyOnce {
			continue
		}
		g.templates, g.total = append(g.templates, one), g.total+one.weight
	}
	return g
}

// program makes about n steps: single statements, and local transactions with savepoints. Most
// transactions commit.
func (g *generator) program(n int) (steps []step) {
	for len(steps) < n {
		if g.IntN(5) > 0 {
			steps = append(steps, g.statement())
			continue
		}
		steps = append(steps, step{do: pick(g, "begin", "begin", "begin", "begin", "begin serializable", "begin read-only")})
		savepoint := false
		for range 1 + g.IntN(6) {
			switch {
			case !savepoint && g.IntN(6) == 0:
				savepoint = true
				steps = append(steps, step{do: "exec", sql: "SAVEPOINT s"})
			case savepoint && g.IntN(4) == 0:
				steps = append(steps, step{do: "exec", sql: pick(g, "ROLLBACK TO SAVEPOINT s", "ROLLBACK TO SAVEPOINT s", "RELEASE SAVEPOINT s")})
			default:
				steps = append(steps, g.statement())
			}
		}
		steps = append(steps, step{do: pick(g, "commit", "commit", "rollback")})
	}
	return steps
}

func (g *generator) statement() step {
	n, i := g.IntN(g.total), 0
	for ; n >= g.templates[i].weight; i++ {
		n -= g.templates[i].weight
	}
	inText := g.IntN(3) == 0
	var s step
	s.sql = hole.ReplaceAllStringFunc(g.templates[i].sql, func(name string) string {
		v := g.value(strings.Trim(name, "{}"))
		if inText {
			if text, ok := literal(g.driver, v); ok {
				return text
			}
		}
		s.args = append(s.args, v)
		if g.driver == postgres {
			return "$" + strconv.Itoa(len(s.args))
		}
		return "?"
	})
	s.do = "exec"
	rows := hasRows.MatchString(s.sql)
	// Now and then it uses the other call. Not for Exec of a statement with rows, prepared by the
	// driver or the program: there go-sql-driver/mysql waits for ever.
	if otherCall := g.IntN(20) == 0 && (g.driver != mysql || !rows); rows != otherCall {
		s.do = "query"
	}
	if g.IntN(3) == 0 {
		s.do = "prepared " + s.do
	}
	return s
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }
