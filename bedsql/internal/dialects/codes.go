package dialects

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/dialect"
)

// Codes maps error codes to their meaning.
type Codes map[string]Meaning

// Meaning is what an error means for the failed write.
type Meaning struct {
	Class dialect.Class
	// Mistake is set if the statement, the schema or a right is at fault, whatever the values.
	Mistake bool
	// Outage is set if the server currently accepts no connections or no writes.
	Outage bool
}

// meanings maps the names in a list to their meaning.
var meanings = map[string]Meaning{
	"mistake": {Class: dialect.Refused, Mistake: true},
	"outage":  {Class: dialect.Retryable, Outage: true},
}

func init() {
	for _, c := range []dialect.Class{dialect.Unknown, dialect.Retryable, dialect.Contention, dialect.Refused, dialect.Duplicate} {
		meanings[c.String()] = Meaning{Class: c}
	}
}

// ReadCodes reads a list of error codes. Each line holds the class, the codes and the
// reason, separated by tabs. Empty lines and lines that begin with # are ignored. Spaces
// separate several codes, and 1000-1003 is a range of numbers. The list is part of the
// program, so ReadCodes panics on a malformed line: skipping it would leave its codes
// unclassified.
func ReadCodes(list string) Codes {
	codes := Codes{}
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
			list := []string{code}
			if first, last, ok := strings.Cut(code, "-"); ok {
				from, err1 := strconv.Atoi(first)
				to, err2 := strconv.Atoi(last)
				if err1 != nil || err2 != nil || from >= to {
					bad("a range has to be of two numbers")
				}
				for list = nil; from <= to; from++ {
					list = append(list, strconv.Itoa(from))
				}
			}
			for _, code := range list {
				if _, twice := codes[code]; twice {
					bad("the code is listed already")
				}
				codes[code] = means
			}
		}
	}
	return codes
}

// BeginsWith reports whether the text of err has one of these beginnings, for driver errors
// without a type or value of their own.
func BeginsWith(err error, beginnings []string) bool {
	return slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(err.Error(), b) })
}

// Of returns the meaning of the first listed name of an error; the names come narrowest first.
// Without any it is unclassified: the server did answer.
func (c Codes) Of(names ...string) Meaning {
	for _, name := range names {
		if means, ok := c[name]; ok {
			return means
		}
	}
	return Meaning{Class: dialect.Unclassified}
}
