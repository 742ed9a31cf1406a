package dialects

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/dialect"
)

// Codes maps error codes to their meaning.
type Codes struct {
	single map[string]meaning
	// spans are in the order of the list and do not overlap.
	spans []span
}

type meaning struct {
	class dialect.Class
	// mistake is set if the statement, the schema or a right is at fault, whatever the values.
	mistake bool
	// outage is set if the server currently accepts no connections or no writes.
	outage bool
}

type span struct {
	from, to int
	means    meaning
}

// meanings maps the names in a list to their meaning.
var meanings = map[string]meaning{
	"mistake": {class: dialect.Refused, mistake: true},
	"outage":  {class: dialect.Retryable, outage: true},
}

func init() {
	for _, c := range []dialect.Class{dialect.Unknown, dialect.Retryable, dialect.Contention, dialect.Refused, dialect.Duplicate} {
		meanings[c.String()] = meaning{class: c}
	}
}

// ReadCodes reads a list of error codes. Each line holds the class, the codes and the
// reason, separated by tabs. Empty lines and lines that begin with # are ignored. Spaces
// separate several codes, and 1000-1003 is a range of numbers. The list is part of the
// program, so ReadCodes panics on a malformed line: skipping it would leave its codes
// unclassified.
func ReadCodes(list string) Codes {
	codes := Codes{single: map[string]meaning{}}
	number := 0
	for line := range strings.Lines(list) {
		number++
		line = strings.TrimRight(line, "\n")
		if strings.TrimSpace(line) == "" || line[0] == '#' {
			continue
		}
		fields := strings.Split(line, "\t")
		bad := func(what string) { panic(fmt.Sprintf("dialects: line %d, %q: %s", number, line, what)) }
		if len(fields) != 3 || strings.TrimSpace(fields[1]) == "" || strings.TrimSpace(fields[2]) == "" {
			bad("it has to have a class, a code and a reason, with tabs between them")
		}
		means, known := meanings[fields[0]]
		if !known {
			bad("there is no such class")
		}
		for code := range strings.FieldsSeq(fields[1]) {
			if first, last, ok := strings.Cut(code, "-"); ok {
				from, err1 := strconv.Atoi(first)
				to, err2 := strconv.Atoi(last)
				if err1 != nil || err2 != nil || from >= to {
					bad("a range has to be of two numbers")
				}
				codes.spans = append(codes.spans, span{from, to, means})
				continue
			}
			if _, twice := codes.single[code]; twice {
				bad("the code is listed already")
			}
			codes.single[code] = means
		}
	}
	return codes
}

// BeginsWith reports whether the text of err has one of these beginnings, for driver errors
// without a type or value of their own.
func BeginsWith(err error, beginnings []string) bool {
	return slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(err.Error(), b) })
}

// Class returns the class of the first listed name of an error; the names come narrowest
// first. Without any it is unclassified: the server did answer.
func (c Codes) Class(names ...string) dialect.Class { return c.find(names).class }

// Mistake reports whether the list has one of these names as a mistake in the statement, the
// schema or the rights.
func (c Codes) Mistake(names ...string) bool { return c.find(names).mistake }

// Outage reports whether the server behind an error with these names currently accepts no
// connections or no writes.
func (c Codes) Outage(names ...string) bool { return c.find(names).outage }

func (c Codes) find(names []string) meaning {
	for _, name := range names {
		if means, ok := c.single[name]; ok {
			return means
		}
		if n, err := strconv.Atoi(name); err == nil {
			for _, s := range c.spans {
				if s.from <= n && n <= s.to {
					return s.means
				}
			}
		}
	}
	return meaning{class: dialect.Unclassified}
}
