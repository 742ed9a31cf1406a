package mysql

import (
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/go-sql-driver/mysql"
)

// name is this kind of database's name in configurations.
const name = "mysql"

// newDialect returns the dialect of one data source; it holds the knowledge of the server
// and its tables from their first use. cfg is the DSN; nil if unknown.
func newDialect(cfg *mysql.Config) *dialect.Dialect {
	return dialectOf(&compounds{prepareFrom: defaultPrepareFrom}, cfg)
}

func dialectOf(c *compounds, cfg *mysql.Config) *dialect.Dialect {
	c.binds = cfg != nil && !cfg.InterpolateParams
	a := &asker{foreign: cfg == nil, compounds: c}
	if cfg != nil {
		a.home, a.names = cfg.DBName, namesOf(cfg)
	}
	return &dialect.Dialect{
		Name:                name,
		System:              name,
		Namespace:           a.home,
		Flavor:              sqltext.MySQL,
		Classify:            classify,
		Mistake:             isMistake,
		Undecoded:           undecoded,
		Reusable:            reusable,
		CheckNamedValue:     checkNamedValue,
		Storable:            storable,
		Greet:               a.greet,
		Session:             a.session,
		Adapt:               a.adapt,
		Named:               readNamed,
		Nameable:            nameable,
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
