// Package txlog keeps the transaction log: the durable record of every write
// that was promised and has not yet been seen to arrive.
//
// [Open] opens it in MySQL/MariaDB, PostgreSQL or SQLite and creates its tables;
// [NewMemory] keeps one in the process, for tests.
//
// A [Unit] is what is delivered together: one DML, or the statements of one local
// transaction in their order. In the log it is one entry, which has a row of the table
// for each statement. A [Storage] keeps units between the moment they are promised
// and the moment they are known to be delivered.
//
// Every unit in a store belongs to somebody for a while: its lease names the
// owner by a token and ends on the store's own clock. An owner that lost its lease
// cannot remove, renew or judge the unit any more ([ErrLeaseLost]).
package txlog
