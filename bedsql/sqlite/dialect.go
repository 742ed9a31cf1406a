package sqlite

import (
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/sqltext"
)

// name is this kind of database's name in configurations.
const name = "sqlite"

// sqliteDialect has no Atomic and no CommitWith: without a network they would save no round trips.
var sqliteDialect = &dialect.Dialect{
	Name:             name,
	System:           name,
	Flavor:           sqltext.SQLite,
	Classify:         classify,
	Mistake:          isMistake,
	ReceiptDuplicate: isReceiptDuplicate,
	Storable:         storable,
	TransactionLost:  transactionLost,
	Carried:          carried,
	Writable:         writable,
	ReadOnly:         isReadOnly,
	GeneratedIDs:     true,
}
