package mysql

import (
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Name is this kind of database's name in configurations.
const Name = "mysql"

// newDialect returns the dialect of one data source: what it learns of the
// server and its tables on first use is kept in it.
func newDialect() *delivery.Dialect {
	return dialectOf(&compounds{prepareFrom: defaultPrepareFrom})
}

func dialectOf(c *compounds) *delivery.Dialect {
	return &delivery.Dialect{
		Name:                Name,
		Flavor:              txlog.FlavorMySQL,
		Classify:            Classify,
		Undecoded:           undecoded,
		Reusable:            reusable,
		CheckNamedValue:     checkNamedValue,
		Storable:            storable,
		Greet:               c.greet,
		TransactionLost:     transactionLost,
		AfterImplicitCommit: afterImplicitCommit,
		Atomic:              c.atomic,
		CommitWith:          c.commitWith,
		Receipt:             spreadReceipt,
		ReceiptDuplicate:    isReceiptDuplicate,
		ReceiptBusy:         isReceiptBusy,
		Writable:            writable,
		ReadOnly:            isReadOnly,
		GeneratedIDs:        true,
	}
}

// Dialect returns what bed knows about MySQL and MariaDB. Each data source is
// to have a Dialect of its own.
func Dialect() *delivery.Dialect { return newDialect() }
