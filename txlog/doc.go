// Package txlog keeps the transaction log: the durable record of every write that was
// promised and is not yet known to be delivered.
//
// [Open] opens it in MySQL/MariaDB, PostgreSQL or SQLite and creates its tables;
// [NewMemory] keeps one in the process, for tests.
//
// A [Unit] is delivered as a whole: it is one DML, or the statements of one local
// transaction in their order. In the log it is one entry, with a row of the table for each
// statement. A [Storage] keeps units from the promise until their known delivery.
//
// A unit has an owner for a while: its lease names the owner by a token and ends on the
// store's own clock. After losing the lease, the former owner cannot remove, renew or judge
// the unit any more ([ErrLeaseLost]).
package txlog
