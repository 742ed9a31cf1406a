package postgres

import (
	"database/sql/driver"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// name is this kind of database's name in configurations.
const name = "postgres"

// dialect has no TransactionLost: after an error PostgreSQL refuses everything
// until ROLLBACK, so that nothing can be committed on its own.
var dialect = &delivery.Dialect{
	Name:             name,
	Flavor:           txlog.FlavorPostgres,
	Classify:         classify,
	Mistake:          isMistake,
	Undecoded:        undecoded,
	PreparedByText:   true,
	Quoting:          quoting,
	Reset:            reset,
	ReceiptDuplicate: isReceiptDuplicate,
	ReceiptBusy:      isReceiptBusy,
	Idle:             idle,
	Interrupt:        interrupt,
	Atomic:           atomic,
	CommitWith:       commitWith,
	CheckNamedValue:  func(*driver.NamedValue) error { return nil }, // pgx takes what its codecs take, and says so when it encodes
	Storable:         storable,
	Greet:            greet,
	Session:          sessionText,
	Adapt:            adapt,
	Pooled:           isPooled,
	Obeys:            obeys,
	Writable:         writable,
	ReadOnly:         isReadOnly,
}
