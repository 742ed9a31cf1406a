package mysql

import (
	"github.com/bedsql/bed/listener/delivery"
)

// Name is this kind of database's name in configurations.
const Name = "mysql"

var dialect = &delivery.Dialect{
	Name:            Name,
	Flavor:          delivery.MySQL,
	Classify:        Classify,
	CheckNamedValue: checkNamedValue,
	Storable:        storable,
	TransactionLost: transactionLost,
	StillOpen:       stillOpen,
	GeneratedIDs:    true,
}

// Dialect returns what bed knows about MySQL and MariaDB.
func Dialect() *delivery.Dialect { return dialect }
