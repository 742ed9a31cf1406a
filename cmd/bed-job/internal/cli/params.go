package cli

import (
	"fmt"
	"strconv"

	"github.com/bedsql/bed/internal/ops"
)

const paramHelp = `
Parameters hold the application's data: show prints their types and sizes, and their
values only with --show-parameters. What the application wrote into the SQL text
itself is part of the SQL and is printed, and so is what the database says in its
error message.

In JSON each statement also has its parameters: ordinal, name, type, size in bytes,
and with --show-parameters the value: true and false as such, everything else as
text (whole numbers keep all their digits); with encoding base64 it is bytes.`

// paramLine is the parameter for an operator: "1 @name  string, 12 bytes", and with
// its value when values are shown.
func paramLine(v ops.Parameter, values bool) string {
	s := strconv.Itoa(v.Ordinal)
	if v.Name != "" {
		s += " @" + printable(v.Name)
	}
	s += "\t" + printable(v.Type)
	if v.Size != nil {
		s += fmt.Sprintf(", %d bytes", *v.Size)
	}
	if !values {
		return s
	}
	switch x, _ := v.Value.(string); {
	case v.Value == nil:
		return s + "\tNULL"
	case v.Encoding != "":
		return s + "\t" + v.Encoding + " " + x
	case v.Type == "string":
		return s + "\t" + strconv.Quote(x)
	default:
		return s + "\t" + printable(fmt.Sprint(v.Value))
	}
}
