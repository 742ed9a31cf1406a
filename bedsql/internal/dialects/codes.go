package dialects

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bedsql/bed/listener/delivery"
)

// Codes gives the class of each code that is listed.
type Codes map[string]delivery.Class

// classes are by the names under which lists have them.
var classes = func() map[string]delivery.Class {
	named := map[string]delivery.Class{}
	for _, c := range []delivery.Class{delivery.Unknown, delivery.Retryable, delivery.Refused, delivery.Duplicate} {
		named[c.String()] = c
	}
	return named
}()

// ReadCodes reads a list of what the errors of a database mean for a write: each line has the class, the code and the reason, separated
// by tabs, is empty, or begins with # for a comment. The list is part of the
// program, so ReadCodes panics, naming the line, if it cannot be read: a line that was
// skipped would leave its code retryable.
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
		if len(fields) != 3 || fields[1] == "" || strings.TrimSpace(fields[2]) == "" {
			bad("it has to have a class, a code and a reason, with tabs between them")
		}
		class, known := classes[fields[0]]
		if !known {
			bad("there is no such class")
		}
		if _, twice := codes[fields[1]]; twice {
			bad("the code is listed already")
		}
		codes[fields[1]] = class
	}
	return codes
}

// BeginsWith reports whether the text of err has one of these beginnings, for
// errors of a driver that have no type or value of their own.
func BeginsWith(err error, beginnings []string) bool {
	return slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(err.Error(), b) })
}

// Class is that of the first listed name of an error; the names come narrowest
// first. Without any it is retryable: the server did answer.
func (c Codes) Class(names ...string) delivery.Class {
	for _, name := range names {
		if class, ok := c[name]; ok {
			return class
		}
	}
	return delivery.Retryable
}
