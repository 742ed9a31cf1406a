package delivery

import (
	"errors"
	"fmt"
)

var (
	// ErrVoided is the error of an attempt that met the receipt of a unit of which
	// it was decided that it was not applied and never will be.
	ErrVoided = errors.New("bed: it was decided before that this write is not applied and never will be")
	// ErrKeyReused is the error of a request under an idempotency key that another
	// request was sent under before. It is not applied.
	ErrKeyReused = errors.New("bed: the idempotency key was used before for another request")
)

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
