package bedsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"sync"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Outcome is what an error of this package means for the caller of a write, and so
// what the caller may answer its own client.
type Outcome uint8

const (
	// OutcomeDelivered: it is applied. Answer "done". Where the error is
	// ErrRowsUnknown, its rows or row count were lost with the database's answer.
	OutcomeDelivered Outcome = iota
	// OutcomeAccepted: the log holds it. It is delivered later, or an operator
	// decides. Answer "accepted", never "failed, send it again".
	OutcomeAccepted
	// OutcomeRefused: nothing was applied, and sending the same again does not help.
	OutcomeRefused
	// OutcomeNotAccepted: this call applied nothing, and nothing of it will be. Answer
	// "try again later". Under an idempotency key an earlier request may have been applied.
	OutcomeNotAccepted
	// OutcomePartlyRefused: of several writes some were refused or not accepted, and
	// the others are delivered or accepted. Ask *EndError which.
	OutcomePartlyRefused
	// OutcomeCompensated: everything that had been applied was undone.
	OutcomeCompensated
	// OutcomeUnknown: it may or may not be applied. Look before sending it again, or send
	// it again under the same idempotency key. See ErrUnknownOutcome.
	OutcomeUnknown
)

// HTTPStatus gives the status with which an HTTP server may answer: 200, 202, 409,
// 503, 207, 409 and 500, in the order of the constants.
func (o Outcome) HTTPStatus() int {
	statuses := [...]int{200, 202, 409, 503, 207, 409, 500} // bedsql does not link net/http
	return statuses[min(o, OutcomeUnknown)]
}

func (o Outcome) String() string {
	names := [...]string{"delivered", "accepted", "refused", "not accepted", "partly refused", "compensated", "unknown"}
	return names[min(o, OutcomeUnknown)]
}

// OutcomeOf says what err, which a write, a Commit or an End returned, means for its
// caller. Wrapped errors and errors.Join are looked through: of several outcomes the
// whole is given, OutcomePartlyRefused where they differ in what was applied. An error
// about which nothing is known is OutcomeUnknown.
//
// An error of a driver means what the errors of its database are listed to mean: a
// refusal is OutcomeRefused, an answer that may be different later (a deadlock) or a
// failed dial OutcomeNotAccepted, a broken connection OutcomeUnknown. So an error of a
// statement inside a local transaction may be OutcomeUnknown, although nothing of the
// transaction is applied before its Commit.
//
// A bare context error means that nothing was applied. (database/sql leaves one gap:
// if the context ends after the write has returned its rows and before they are
// scanned, QueryRow reports the context's error of a write that is delivered. The
// error of Query is the write's alone.)
func OutcomeOf(err error) Outcome {
	if err == nil {
		return OutcomeDelivered
	}
	if o, known := outcomeOf(err); known {
		return o
	}
	return OutcomeUnknown
}

// sentinels are the outcomes of errors that have no type of their own, or that are
// met without it.
var sentinels = []struct {
	err     error
	outcome Outcome
}{
	{ErrRowsUnknown, OutcomeDelivered},
	{sql.ErrNoRows, OutcomeDelivered}, // the statement ran and returned no row
	{ErrPending, OutcomeAccepted},
	{ErrNotLogged, OutcomeNotAccepted},
	{ErrUnknownOutcome, OutcomeUnknown},
	{ErrKeyReused, OutcomeRefused},
	{ErrKeyUnusable, OutcomeRefused},
	{ErrOrderUnusable, OutcomeRefused},
	{ErrOvertaken, OutcomeRefused},
	{ErrNested, OutcomeRefused},
	{ErrEnded, OutcomeRefused},
	{ErrStaged, OutcomeRefused},
	{ErrNotIdempotent, OutcomeRefused},
	{ErrPinned, OutcomeRefused},
	{ErrTransactionLost, OutcomeNotAccepted},
	{ErrRolledBack, OutcomeNotAccepted},
	{ErrNotCommitted, OutcomeUnknown},
	{delivery.ErrVoided, OutcomeNotAccepted},
	{context.Canceled, OutcomeNotAccepted},
	{context.DeadlineExceeded, OutcomeNotAccepted},
	{sql.ErrTxDone, OutcomeNotAccepted}, // as a rule its context has ended
	{sql.ErrConnDone, OutcomeNotAccepted},
	{driver.ErrBadConn, OutcomeUnknown}, // not every driver keeps its promise that nothing was sent
}

// outcomeOf looks at err before it looks at what err wraps.
func outcomeOf(err error) (o Outcome, known bool) {
	switch e := err.(type) { //nolint:errorlint // it walks the tree by itself
	case *EndError:
		return e.outcome(), true
	case *becauseError:
		return outcomeOf(e.what)
	case *CompensatedError:
		return OutcomeCompensated, true
	case *RefusedError, *NotHomeError, *txlog.ParamError, *delivery.ReceiptTableError, *delivery.ReceiptRightsError:
		return OutcomeRefused, true
	case interface{ Certainly() delivery.Class }:
		return ofClass(e.Certainly()), true
	}
	for _, s := range sentinels {
		if is, ok := err.(interface{ Is(error) bool }); err == s.err || ok && is.Is(s.err) { //nolint:errorlint // see above
			return s.outcome, true
		}
	}
	var inside []Outcome
	switch e := err.(type) { //nolint:errorlint // see above
	case interface{ Unwrap() error }:
		if cause := e.Unwrap(); cause != nil {
			if o, known := outcomeOf(cause); known {
				return o, true
			}
		}
	case interface{ Unwrap() []error }:
		for _, cause := range e.Unwrap() {
			if cause == nil {
				continue
			}
			if o, known := outcomeOf(cause); known {
				inside = append(inside, o)
			}
		}
	}
	if len(inside) > 0 {
		return together(inside...), true
	}
	return ofOthers(err)
}

// together is the outcome of several writes, or of none.
func together(all ...Outcome) Outcome {
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
	case has[OutcomeAccepted]:
		return OutcomeAccepted
	case has[OutcomeRefused]:
		return OutcomeRefused
	case has[OutcomeCompensated]:
		return OutcomeCompensated
	case has[OutcomeNotAccepted]:
		return OutcomeNotAccepted
	default:
		return OutcomeDelivered
	}
}

func ofClass(c delivery.Class) Outcome {
	switch c {
	case delivery.Refused, delivery.Duplicate:
		return OutcomeRefused
	case delivery.Retryable, delivery.Contention, delivery.Unreachable:
		return OutcomeNotAccepted
	default:
		return OutcomeUnknown
	}
}

// dialects are those that a connector was made with, by their names. They know what
// the errors of their drivers mean.
var dialects sync.Map

// ofOthers reads an error that is neither of this package nor one of database/sql's
// own values.
func ofOthers(err error) (o Outcome, known bool) {
	text := err.Error()
	if strings.HasPrefix(text, "sql: Scan error") || strings.HasPrefix(text, "sql: expected ") && strings.Contains(text, " in Scan") {
		return OutcomeDelivered, true // it returned a row, which the caller could not take
	}
	class := delivery.Unknown
	dialects.Range(func(_, d any) bool {
		class = d.(*delivery.Dialect).Class(err)
		return class == delivery.Unknown
	})
	switch {
	case class != delivery.Unknown:
		return ofClass(class), true
	case strings.HasPrefix(text, "bed: "), strings.HasPrefix(text, "sql: "):
		return OutcomeRefused, true // an error of usage
	}
	return OutcomeUnknown, false
}

// becauseError is an error of this package with its reason, which errors.Is finds
// and which does not change its outcome.
type becauseError struct{ what, why error }

func because(what, why error) error { return &becauseError{what, why} }

func (e *becauseError) Error() string { return e.what.Error() + ": " + e.why.Error() }

// Unwrap gives both.
func (e *becauseError) Unwrap() []error { return []error{e.what, e.why} }

// outcome is OutcomeOf what End reports.
func (e *EndError) outcome() Outcome {
	all := make([]Outcome, 0, len(e.Errors)+1)
	for _, err := range e.Errors {
		all = append(all, OutcomeOf(err))
	}
	if len(e.Delivered) > 0 {
		all = append(all, OutcomeDelivered)
	}
	return together(all...)
}
