package entry

import (
	"fmt"
	"strconv"
	"strings"
)

// Requirement is the number of rows that a statement must change; the zero value requires
// nothing. Requirements are comparable by ==.
type Requirement struct {
	op string
	n  int64
}

const (
	exactly = "="
	atLeast = ">="
)

// Exactly requires n rows, from 0.
func Exactly(n int64) Requirement { return Requirement{exactly, n} }

// AtLeast requires n rows or more; AtLeast(0) requires nothing.
func AtLeast(n int64) Requirement {
	if n == 0 {
		return Requirement{}
	}
	return Requirement{atLeast, n}
}

// Given reports whether r requires anything.
func (r Requirement) Given() bool { return r.op != "" }

// Rows returns the required number of rows; more reports whether a greater number is also
// met.
func (r Requirement) Rows() (n int64, more bool) { return r.n, r.op == atLeast }

// Met reports whether a statement that changed n rows meets r.
func (r Requirement) Met(n int64) bool {
	return !r.Given() || r.op == exactly && n == r.n || r.op == atLeast && n >= r.n
}

// String describes the requirement, as "exactly 1 row"; empty for the zero value.
func (r Requirement) String() string {
	if !r.Given() {
		return ""
	}
	how, rows := "exactly", "rows"
	if r.op == atLeast {
		how = "at least"
	}
	if r.n == 1 {
		rows = "row"
	}
	return fmt.Sprintf("%s %d %s", how, r.n, rows)
}

// Sign returns the requirement in the log's notation, "=1" or ">=1"; empty for the zero
// value.
func (r Requirement) Sign() string {
	if !r.Given() {
		return ""
	}
	return r.op + strconv.FormatInt(r.n, 10)
}

// ReadRequirement reverses Sign.
func ReadRequirement(sign string) (r Requirement, ok bool) {
	text, more := strings.CutPrefix(sign, ">")
	if text, ok = strings.CutPrefix(text, "="); !ok {
		return r, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if r = Exactly(n); more {
		r = AtLeast(n)
	}
	return r, err == nil && r.Sign() == sign
}
