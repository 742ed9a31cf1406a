// Package errorcodes reads what the errors of a database mean for a write.
package errorcodes

import (
	"strings"

	"github.com/bedsql/bed/listener/delivery"
)

// Codes gives the class of each code that is listed.
type Codes map[string]delivery.Class

// Read reads a list: in a line the class, the code and the reason, with tabs
// between them.
func Read(list string) Codes {
	codes := Codes{}
	for line := range strings.Lines(list) {
		fields := strings.Split(line, "\t")
		for _, class := range []delivery.Class{delivery.Unknown, delivery.Retryable, delivery.Refused, delivery.Duplicate} {
			if len(fields) == 3 && fields[0] == class.String() {
				codes[fields[1]] = class
			}
		}
	}
	return codes
}

// Class is that of the first of the names of an error that is listed, the
// narrowest first. Without any it is retryable: the server did answer.
func (c Codes) Class(names ...string) delivery.Class {
	for _, name := range names {
		if class, ok := c[name]; ok {
			return class
		}
	}
	return delivery.Retryable
}
