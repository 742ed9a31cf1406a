package sqlite

import (
	"github.com/bedsql/bed/listener/delivery"
)

// Name is this kind of database's name in configurations.
const Name = "sqlite"

var dialect = &delivery.Dialect{
	Name:            Name,
	Flavor:          delivery.SQLite,
	Classify:        Classify,
	Storable:        storable,
	TransactionLost: transactionLost,
	GeneratedIDs:    true,
}

// Dialect returns what bed knows about SQLite.
func Dialect() *delivery.Dialect { return dialect }
