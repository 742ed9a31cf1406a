package delivery

import (
	"errors"
	"fmt"

	"github.com/bedsql/bed/txlog"
)

var (
	// ErrVoided is the error of an attempt that met the receipt of a unit of which
	// it was decided that it was not applied and never will be.
	ErrVoided = errors.New("bed: it was decided before that this write is not applied and never will be")
	// ErrKeyReused is the error of a request under an idempotency key that another
	// request was sent under before. It is not applied.
	ErrKeyReused = errors.New("bed: the idempotency key was used before for another request")
	// ErrOvertaken is the error of a write under an order key after a later one was
	// delivered: an operator had it skipped, or its writer stood still. It is not applied.
	ErrOvertaken = errors.New("bed: not applied, it was overtaken: a later write under its order key was delivered; " +
		"discard its entry if there is one, and send what is still meant as a new write")
)

// RowsError is the error of a write that did not change as many rows as it must: it
// is rolled back. It is a refusal.
type RowsError struct {
	// Want is how many rows it must change; AtLeast: or more.
	Want    int64
	AtLeast bool
	// Got is how many it changed; -1 if that is not known.
	Got int64
}

// Unmet is the error of a write that changed got rows, -1 if that is not known, under
// a requirement that it does not meet.
func Unmet(r txlog.Requirement, got int64) error {
	n, more := r.Rows()
	return &RowsError{Want: n, AtLeast: more, Got: got}
}

func (e *RowsError) Error() string {
	required := txlog.Exactly(e.Want)
	if e.AtLeast {
		required = txlog.AtLeast(e.Want)
	}
	if e.Got < 0 {
		return fmt.Sprintf("bed: the write is refused: required %v, and the driver does not say how many it changed (a write without RETURNING must be sent by Exec)", required)
	}
	return fmt.Sprintf("bed: the write is refused: required %v, changed %d", required, e.Got)
}

// Certainly says that it is not applied, and running it again does not help.
func (*RowsError) Certainly() Class { return Refused }

// ReceiptTableError says that there is no usable table bed_receipt in a target,
// and that it could not be created. The write is not applied.
type ReceiptTableError struct {
	// Statement creates it, or adds what it lacks.
	Statement string
	// Err is why it could not be created or used.
	Err error
}

func (e *ReceiptTableError) Error() string {
	return fmt.Sprintf("bed: the target has no usable table bed_receipt, which exactly-once needs (%v); run there:\n%s;", e.Err, e.Statement)
}

// Unwrap gives the database's error.
func (e *ReceiptTableError) Unwrap() error { return e.Err }

// ReceiptRightsError says that the account lacks rights on the table bed_receipt
// of a target. The write is not applied, unless the error is wrapped in an
// ErrPending.
type ReceiptRightsError struct {
	// Grant gives it those that deliveries and purges need.
	Grant string
	// Err is the database's error.
	Err error
}

func (e *ReceiptRightsError) Error() string {
	return fmt.Sprintf("bed: the account lacks rights on the target's table bed_receipt (%v); run there, by an account that may, once the table exists:\n%s;", e.Err, e.Grant)
}

// Unwrap gives the database's error.
func (e *ReceiptRightsError) Unwrap() error { return e.Err }
