package sqlite

import (
	"time"

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

// The driver has no parameter check of its own: with or without a dialled connection,
// database/sql's default applies. The log keeps all values that pass it.

// storable drops a time's monotonic part, and keeps its zone as an abbreviation. Without
// _time_format the driver writes time.Time.String. There the monotonic part means nothing to
// another process, and the zone may be missing on another machine: "Local" is a different
// zone on each.
func storable(v any) (any, error) {
	t, ok := v.(time.Time)
	if !ok {
		return v, nil
	}
	if name, offset := t.Zone(); t.Location().String() != name {
		t = t.In(time.FixedZone(name, offset))
	}
	return t.Round(0), nil
}
