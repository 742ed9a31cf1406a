// Package txlog keeps the transaction log: the durable record of every write
// that was promised and has not yet been seen to arrive.
//
// A [Unit] is what is delivered together: one DML, or the statements of one
// local transaction in their order. A [Storage] keeps units between the moment
// they are promised and the moment they are known to be delivered; [Open]
// gives one in MySQL/MariaDB, PostgreSQL or SQLite, [NewMemory] one for tests.
//
// Every unit in a store belongs to somebody for a while: its lease names the
// owner by a token and ends on the store's own clock. Whoever lost the lease
// cannot remove, renew or judge the unit any more ([ErrLeaseLost]).
package txlog
