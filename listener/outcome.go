package listener

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed" // outcomes.txt
	"errors"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/txlog"
)

// Outcome is the meaning of a write's error for its caller, and so for the caller's answer
// to its own client.
type Outcome uint8

const (
	// OutcomeDelivered means that it is applied. Answer "done". With ErrRowsUnknown, its rows
	// or row count were lost with the database's answer.
	OutcomeDelivered Outcome = iota
	// OutcomeAccepted means that it is in the log. It is delivered later, or an operator
	// decides. Answer "accepted", never "failed, send it again".
	OutcomeAccepted
	// OutcomeRefused means that it had no effect, and that sending the same again does not
	// help.
	OutcomeRefused
	// OutcomeNotAccepted means that this call has no effect, now or later. Answer "try again
	// later". Under an idempotency key an earlier request may have been applied.
	OutcomeNotAccepted
	// OutcomePartlyRefused means that some of several writes were refused or not accepted, and
	// the others are delivered or accepted. *EndError lists them.
	OutcomePartlyRefused
	// OutcomeCompensated means that it was refused. All applied writes are undone, or are being
	// undone, by an operator if the database refuses that.
	OutcomeCompensated
	// OutcomeUnknown means that it may or may not be applied. Look before sending it again, or
	// send it again under the same idempotency key. See ErrUnknownOutcome.
	OutcomeUnknown
)

var outcomeNames = [...]string{"delivered", "accepted", "refused", "not accepted", "partly refused", "compensated", "unknown"}

func (o Outcome) String() string { return outcomeNames[min(o, OutcomeUnknown)] }

// OutcomeOf is bedsql.OutcomeOf.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return OutcomeDelivered
	}
	o, _ := outcomeOf(err)
	return o
}

// sentinels maps errors to outcomes. It matches equal errors, and the method Is of an error.
var sentinels = []struct {
	err     error
	outcome Outcome
}{
	{ErrRowsUnknown, OutcomeDelivered},
	{sql.ErrNoRows, OutcomeDelivered}, // the statement ran and returned no row
	{ErrPending, OutcomeAccepted},
	{ErrNotLogged, OutcomeNotAccepted},
	{ErrUnknownOutcome, OutcomeUnknown},
	{txlog.ErrUnstorable, OutcomeRefused},
	{context.Canceled, OutcomeNotAccepted},
	{context.DeadlineExceeded, OutcomeNotAccepted},
	{driver.ErrBadConn, OutcomeUnknown}, // not every driver keeps its promise that nothing was sent
}

// outcomeOf checks err itself before the errors that it wraps.
func outcomeOf(err error) (o Outcome, known bool) {
	switch e := err.(type) { //nolint:errorlint // it walks the tree by itself
	case interface{ Outcome() Outcome }:
		return e.Outcome(), true
	case interface{ Outcomes() []Outcome }:
		return together(e.Outcomes()), true
	case *PendingError:
		switch {
		case e.Compensating:
			return OutcomeCompensated, true
		case errors.Is(e.Cause, txlog.ErrInDoubt):
			return OutcomeUnknown, true
		}
		return OutcomeAccepted, true
	case *CompensatedError:
		return OutcomeCompensated, true
	case *RefusedError, *txlog.ParamError, *dialect.ReceiptTableError, *dialect.ReceiptRightsError:
		return OutcomeRefused, true
	case interface{ Certainly() dialect.Class }:
		return ofClass(e.Certainly()), true
	}
	for _, s := range sentinels {
		if is, ok := err.(interface{ Is(error) bool }); err == s.err || ok && is.Is(s.err) { //nolint:errorlint // see above
			return s.outcome, true
		}
	}
	causes := []error{errors.Unwrap(err)}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		causes = several.Unwrap() // and its text may begin with that of one of them
	} else if o, known := ofText(err.Error()); known {
		return o, true
	}
	var inside []Outcome
	for _, cause := range causes {
		if cause == nil {
			continue
		}
		if o, known := outcomeOf(cause); known {
			inside = append(inside, o)
		}
	}
	if len(inside) > 0 {
		return together(inside), true
	}
	class := dialect.ClassOf(err)
	return ofClass(class), class != dialect.Unknown
}

// together returns the outcome of several writes; there may be none.
func together(all []Outcome) Outcome {
	var has [OutcomeUnknown + 1]bool
	for _, o := range all {
		has[o] = true
	}
	kept := has[OutcomeDelivered] || has[OutcomeAccepted]
	not := has[OutcomeRefused] || has[OutcomeNotAccepted] || has[OutcomeCompensated]
	switch {
	case has[OutcomeUnknown] || len(all) == 0:
		return OutcomeUnknown
	case has[OutcomePartlyRefused] || kept && not:
		return OutcomePartlyRefused
	}
	for _, o := range []Outcome{OutcomeAccepted, OutcomeRefused, OutcomeCompensated, OutcomeNotAccepted} {
		if has[o] {
			return o
		}
	}
	return OutcomeDelivered
}

func ofClass(c dialect.Class) Outcome {
	switch c {
	case dialect.Refused, dialect.Duplicate:
		return OutcomeRefused
	case dialect.Retryable, dialect.Contention, dialect.Unreachable:
		return OutcomeNotAccepted
	default:
		return OutcomeUnknown
	}
}

//go:embed outcomes.txt
var outcomeList string

type beginning struct {
	text    string
	outcome Outcome
}

// beginnings holds the lines of outcomes.txt, the longest text first.
var beginnings = func() (all []beginning) {
	for line := range strings.Lines(outcomeList) {
		if name, text, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok {
			all = append(all, beginning{text, Outcome(slices.Index(outcomeNames[:], name))})
		}
	}
	slices.SortFunc(all, func(a, b beginning) int { return len(b.text) - len(a.text) })
	return all
}()

func ofText(text string) (o Outcome, known bool) {
	if strings.HasPrefix(text, "sql: expected ") && strings.Contains(text, " in Scan") {
		return OutcomeDelivered, true // it returned a row, which the caller could not take
	}
	for _, b := range beginnings {
		if strings.HasPrefix(text, b.text) {
			return b.outcome, true
		}
	}
	return OutcomeUnknown, false
}
