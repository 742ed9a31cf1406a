package mysql

import (
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// name is this kind of database's name in configurations.
const name = "mysql"

// newDialect returns the dialect of one data source: what it learns of the
// server and its tables on first use is kept in it.
func newDialect() *delivery.Dialect {
	return dialectOf(&compounds{prepareFrom: defaultPrepareFrom})
}

func dialectOf(c *compounds) *delivery.Dialect {
	return &delivery.Dialect{
		Name:                name,
		Flavor:              txlog.FlavorMySQL,
		Classify:            classify,
		Undecoded:           undecoded,
		Reusable:            reusable,
		CheckNamedValue:     checkNamedValue,
		Storable:            storable,
		Greet:               c.greet,
		Setting:             setting,
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
