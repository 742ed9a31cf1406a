// Package bedsql wraps a database/sql driver so that every write is delivered
// with best efforts: it is logged before it runs, retried at once when it
// fails, and left to the job when that fails too.
//
// An application needs six names:
//
//   - Register, of bedsql/mysql, bedsql/postgres or bedsql/sqlite, registers a wrapped
//     driver, which sql.Open then takes by its new name;
//   - [Config] says how it behaves; only its Storage is required;
//   - [github.com/bedsql/bed/txlog.Open] opens the transaction log for it;
//   - [ErrPending]: the write is logged and not known to be applied; the job delivers it, or
//     it is parked for an operator. Answer "accepted", never "failed, send it again";
//   - [ErrNotLogged]: the write could not be logged, and it is not applied;
//   - [ExactlyOnce] is the [Guarantee] under which SQL need not be idempotent.
//
// [OutcomeOf] says what an error means, and bedhttp.StatusOf which status to answer with.
//
// A write that returns without an error is applied. The driver's own error, unchanged,
// means that the database refused the write: it is not applied. (Under
// Config.RunUnlogged, while the log cannot be written, and where writes pass through,
// the driver's errors mean what they mean without bed.) [ErrRowsUnknown] means
// that the write is applied, but the answer with its rows was lost: after Exec the
// Result's methods return it, from Query it is the error.
//
// [RowsError] refuses a write that did not change as many rows as [RequireRows] asks.
//
// [ErrUnknownOutcome] means that the write may or may not be applied, and that it is
// not known to be logged. It comes where [Config] asks for a [Logging] other than
// [LogBefore], and where the context of a write that ran unlogged has ended. From
// [SoftTransaction.End], or the Commit of a transaction of [WithTx], it means that the job
// delivers whatever the log holds.
//
// A write that bed cannot take fails before anything runs or is logged: with the error
// of its context if that has ended; with a txlog.ParamError inside for a parameter that
// the log cannot keep; with [ErrEnded], [ErrStaged], [ErrPinned], [ErrNotIdempotent],
// [ErrKeyUnusable], [ErrOrderUnusable] or [LogElsewhereError]; with a
// delivery.ReceiptTableError or delivery.ReceiptRightsError where receipts cannot be kept;
// with [ErrTransactionLost] in a local transaction that the database has rolled back.
// [ErrKeyReused] answers a request under an idempotency key
// that another request has used; the new one is not applied.
//
// Writes for several databases go into a soft transaction ([Begin]): immediate, [Staged],
// or made [WithTx] a transaction of your own. In an immediate one Exec leaves what is pending
// or refused for [SoftTransaction.End] to report. [SoftTransaction.Compensation] records
// what undoes the others. [WithIdempotencyKey] makes a request that is sent again the same
// request; [WithOrderKey] keeps writes in order.
//
// Queries and everything else that is not DML pass through. Inside a local transaction
// writes run as usual; the above then holds for its Commit.
package bedsql
