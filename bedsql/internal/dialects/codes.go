package dialects

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/listener/delivery"
)

// Codes holds what each listed code means.
type Codes struct {
	single map[string]meaning
	// spans are in the order of the list and do not overlap.
	spans []span
}

type meaning struct {
	class delivery.Class
	// mistake: the statement, the schema or a right is at fault, whatever the values.
	mistake bool
	// outage: the server takes no connections or no writes at the moment.
	outage bool
}

type span struct {
	from, to int
	means    meaning
}

// meanings are by the names under which lists have them.
var meanings = map[string]meaning{
	"mistake": {class: delivery.Refused, mistake: true},
	"outage":  {class: delivery.Retryable, outage: true},
}

func init() {
	for _, c := range []delivery.Class{delivery.Unknown, delivery.Retryable, delivery.Contention, delivery.Refused, delivery.Duplicate} {
		meanings[c.String()] = meaning{class: c}
	}
}

// ReadCodes reads a list of what the errors of a database mean for a write. A line has the
// class, the codes and the reason, separated by tabs; or it is empty, or begins with # for a
// comment. Several codes have spaces between them, and 1000-1003 is a range of numbers. The
// list is part of the program, so ReadCodes panics if it cannot read a line: a line that was
// skipped would leave its codes unclassified.
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

// BeginsWith reports whether the text of err has one of these beginnings, for
// errors of a driver that have no type or value of their own.
func BeginsWith(err error, beginnings []string) bool {
	return slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(err.Error(), b) })
}

// Class returns the class of the first listed name of an error; the names come narrowest
// first. Without any it is unclassified: the server did answer.
func (c Codes) Class(names ...string) delivery.Class { return c.find(names).class }

// Mistake reports whether an error of these names is listed as a mistake in the
// statement, the schema or the rights.
func (c Codes) Mistake(names ...string) bool { return c.find(names).mistake }

// Outage reports whether an error of these names says that the server takes no
// connections or no writes at the moment.
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
	return meaning{class: delivery.Unclassified}
}
