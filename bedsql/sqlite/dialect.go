package sqlite

import (
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Name is this kind of database's name in configurations.
const Name = "sqlite"

// dialect has no Atomic and no CommitWith: there is no network whose round trips
// they would save.
var dialect = &delivery.Dialect{
	Name:             Name,
	Flavor:           txlog.FlavorSQLite,
	Classify:         Classify,
	ReceiptDuplicate: isReceiptDuplicate,
	Storable:         storable,
	TransactionLost:  transactionLost,
	Writable:         writable,
	ReadOnly:         isReadOnly,
	GeneratedIDs:     true,
}

// Dialect returns what bed knows about SQLite.
func Dialect() *delivery.Dialect { return dialect }
