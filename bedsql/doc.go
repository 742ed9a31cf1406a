// Package bedsql wraps a database/sql driver so that every write is delivered
// with best efforts: it is logged before it runs, retried at once when it
// fails, and left to the job when that fails too.
//
// An application registers a wrapped driver by its database's package
// (bedsql/mysql, bedsql/postgres, bedsql/sqlite) and opens it by the new name;
// nothing else changes. When a write returns, its error tells what is true:
//
//   - no error: it is applied, and its log is gone or about to be ([Config].Removal);
//   - the driver's own error, unchanged: the database refused it, it is not applied;
//   - [ErrPending]: it is logged and not known to be applied; the job delivers it, or
//     it is parked for a person. Answer "accepted", never "failed, send it again";
//   - [ErrNotLogged]: its log could not be written; it was never sent;
//   - [ErrRowsUnknown]: it is applied, but the answer with its rows was lost. From
//     Exec it comes out of the Result's methods, from Query it is the error.
//
// A write that cannot be taken fails before anything runs or is logged: the
// error of its context if that has ended, a parameter that the log cannot
// keep, [ErrEnded], [ErrStaged], [ErrPinned], [ErrNotIdempotent],
// [ErrKeyUnusable], a [ReceiptTableError]; [ErrTransactionLost] in a local
// transaction that the database has rolled back. [ErrKeyReused] is the answer to
// another request under a used idempotency key, which is not applied. Inside a
// soft transaction Exec keeps what is pending or refused for
// [SoftTransaction.End] to report.
//
// Delivery is at least once, so that SQL must be idempotent, unless
// [Config].Guarantee, [WithGuarantee] or [WithIdempotencyKey] say [ExactlyOnce].
//
// Queries and everything else that is no DML pass through. Inside a local
// transaction writes run as usual; the above then holds for its Commit.
package bedsql
