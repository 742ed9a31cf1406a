// Package bedsql wraps a database/sql driver so that every write is delivered
// with best efforts: it is logged before it runs, retried at once when it
// fails, and left to the job when that fails too.
//
// A user needs six names:
//
//   - Register, of bedsql/mysql, bedsql/postgres or bedsql/sqlite, registers a wrapped
//     driver, which sql.Open then takes by its new name;
//   - [Config] says how it behaves; only its Storage is required;
//   - [github.com/bedsql/bed/txlog.Open] opens the transaction log for it;
//   - [ErrPending]: the write is logged and not known to be applied; the job delivers it, or
//     it is parked for an operator. Answer "accepted", never "failed, send it again";
//   - [ErrNotLogged]: the write could not be logged, and it is not applied;
//   - [ExactlyOnce] is the [Guarantee] with which SQL need not be idempotent.
//
// When a write returns without an error, it is applied. The driver's own error,
// unchanged, means that the database refused it: it is not applied.
// [ErrRowsUnknown] means that it is applied, but the answer with its rows was lost:
// from Exec it comes out of the Result's methods, from Query it is the error.
//
// [ErrUnknownOutcome] comes only where [Config] asks for another [Logging] than
// [LogBefore]: the write may be applied or not, and its log could not be written.
//
// A write that cannot be taken fails before anything runs or is logged: with the
// error of its context if that has ended, for a parameter that the log cannot
// keep, with [ErrEnded], [ErrStaged], [ErrPinned], [ErrNotIdempotent],
// [ErrKeyUnusable] or a delivery.ReceiptTableError; with [ErrTransactionLost] in a local
// transaction that the database has rolled back. [ErrKeyReused] is the answer to
// another request under a used idempotency key, which is not applied.
//
// Writes for several databases go into a soft transaction ([Begin], [Staged]). In one
// that is not staged, Exec keeps what is pending or refused for [SoftTransaction.End] to report.
// [WithIdempotencyKey] makes a request that is sent again the same request.
//
// Queries and everything else that is no DML pass through. Inside a local
// transaction writes run as usual; the above then holds for its Commit.
package bedsql
