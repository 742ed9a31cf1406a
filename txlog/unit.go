package txlog

import "github.com/bedsql/bed/internal/entry"

// Unit is an entry of the log. It is delivered as a whole: one DML, or the DML of one local
// transaction in their order. Among its fields are:
//
//	ID            string    // the id of its first row
//	TransactionID string    // the soft transaction's id, or ID
//	DataSource    string    // the target of the delivery
//	Statements    []        // with SQL, and Args for the parameters
//	CreatedAt     time.Time // on the store's clock, as NextTry
//	NextTry       time.Time // the time of the job's next try, or the end of the lease
//	Tries         int       // the job's failed tries
//	LastError     string    // the text of the last failure
//	InDoubt       bool      // an earlier attempt may have been applied
//	Leased        bool      // it is being written or delivered at this moment
//	Parked        bool      // it waits for an operator
//	Unreadable    error     // the reason why the row was not completely read
type Unit = entry.Unit

// ParamError names the parameter that the log cannot keep or read back. Its text never holds
// the parameter's value. Its fields:
//
//	Name    string // the parameter's name (sql.Named); empty if it has no name
//	Ordinal int    // its position among the statement's parameters, from 1
//	Type    string // its Go type; empty if unknown
//	Err     error  // the reason
type ParamError = entry.ParamError

// RegisterParamType makes the log keep a type that only one driver accepts as a parameter.
// Parameters of exactly sample's type are kept as {"name":"…text of encode…"}; decode must
// return the same type and the same value. Both may be called concurrently; their errors
// must not hold the value.
//
// Call it from the init function of a database's package. Like sql.Register, it panics on a
// mistake: a nil function or sample, a name that is taken or not plain text, or a type
// registered before.
func RegisterParamType(name string, sample any, encode func(any) (string, error), decode func(string) (any, error)) {
	entry.RegisterParamType(name, sample, encode, decode)
}
