package dialect

import (
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/entry"
)

var (
	// ErrVoided is the error of an attempt that met a void receipt: the unit was not applied
	// and never will be.
	ErrVoided = errors.New("bed: it was decided before that this write is not applied and never will be")
	// ErrKeyReused is the error of a request under an idempotency key that was sent before with
	// another request. It is not applied.
	ErrKeyReused = errors.New("bed: the idempotency key was used before for another request")
	// ErrOvertaken is the error of a write under an order key after the delivery of a later
	// one: an operator skipped it, or its writer stood still. It is not applied.
	ErrOvertaken = errors.New("bed: not applied, it was overtaken: a later write under its order key was delivered; " +
		"discard its entry if there is one, and send what is still meant as a new write")
)

// RowsError is the error of a write that missed its required number of changed rows. It was
// rolled back. It is a refusal.
type RowsError struct {
	// Want is the required number of rows; AtLeast allows more.
	Want    int64
	AtLeast bool
	// Got is the actual number; -1 if unknown.
	Got int64
}

// Unmet returns the error of a write that changed got rows and missed r; got is -1 for an
// unknown number.
func Unmet(r entry.Requirement, got int64) error {
	n, more := r.Rows()
	return &RowsError{Want: n, AtLeast: more, Got: got}
}

func (e *RowsError) Error() string {
	required := entry.Exactly(e.Want)
	if e.AtLeast {
		required = entry.AtLeast(e.Want)
	}
	if e.Got < 0 {
		return fmt.Sprintf("bed: the write is refused: required %v, and the driver does not say how many it changed (a write without RETURNING must be sent by Exec)", required)
	}
	return fmt.Sprintf("bed: the write is refused: required %v, changed %d", required, e.Got)
}

// Certainly returns Refused: the write is not applied, and running it again does not help.
func (*RowsError) Certainly() Class { return Refused }

// ReceiptTableError reports a target without a usable table bed_receipt, after a failure to
// create it. The write is not applied.
type ReceiptTableError struct {
	// Statement creates the table, or adds its missing parts.
	Statement string
	// Err is the reason for the failure.
	Err error
}

func (e *ReceiptTableError) Error() string {
	return fmt.Sprintf("bed: the target has no usable table bed_receipt, which exactly-once needs (%v); run there:\n%s;", e.Err, e.Statement)
}

// Unwrap returns the database's error.
func (e *ReceiptTableError) Unwrap() error { return e.Err }

// ReceiptRightsError reports that the account lacks rights on a target's table bed_receipt.
// The write is not applied, unless the error is wrapped in an ErrPending.
type ReceiptRightsError struct {
	// Grant grants the rights for deliveries and purges.
	Grant string
	// Err is the database's error.
	Err error
}

func (e *ReceiptRightsError) Error() string {
	return fmt.Sprintf("bed: the account lacks rights on the target's table bed_receipt (%v); run there, by an account that may, once the table exists:\n%s;", e.Err, e.Grant)
}

// Unwrap returns the database's error.
func (e *ReceiptRightsError) Unwrap() error { return e.Err }

// Describe returns a text for err without values of the application. Servers quote
// parameters in their messages ("Duplicate entry 'x' for key"), whatever the class, so it
// shows only the codes of a server's error. It is safe for log lines; the whole text stays
// in the transaction log's last_error.
func (d *Dialect) Describe(err error) string {
	if err == nil {
		return ""
	}
	var rows *RowsError
	if errors.As(err, &rows) {
		return rows.Error()
	}
	class := d.Class(err)
	var plain interface{ Shown() string }
	if errors.As(err, &plain) {
		return fmt.Sprintf("%s: %s", class, plain.Shown())
	}
	switch code := dberr.Of(err); {
	case code.Known():
		return fmt.Sprintf("%s: %s", class, code)
	case !class.Answered():
		return fmt.Sprintf("%s: %v", class, err)
	default:
		return fmt.Sprintf("%s: %T", class, err)
	}
}

// Advice is what an error says to the next attempt, beyond its class.
type Advice struct {
	// Operator means that only an operator can help. The unit waits, and no try counts.
	Operator bool
	// Busy means that no try counts, as for Contention, whatever the class.
	Busy bool
	// Final means that the data source keeps this refusal for all attempts of the unit: no earlier
	// one was applied, and no later one will be.
	Final bool
	// After is how long to wait at least; 0 for no wish.
	After time.Duration
}

// AdviceOf returns the advice of err, or of an error that it wraps.
func AdviceOf(err error) Advice {
	var with interface{ Advice() Advice }
	if errors.As(err, &with) {
		return with.Advice()
	}
	return Advice{}
}
