// Package bedsql wraps a database/sql driver and delivers every write with best efforts. It logs
// the write before running it, retries it at once when it fails, and leaves it to the job when the
// retries fail too.
//
// An application needs six names:
//
//   - Register, of bedsql/mysql, bedsql/postgres or bedsql/sqlite, registers a wrapped
//     driver, which sql.Open then takes by its new name;
//   - [Config] configures it; only its Storage is required;
//   - [github.com/bedsql/bed/txlog.Open] opens the transaction log for it;
//   - [ErrPending]: the write is logged and not known to be applied; the job delivers it, or
//     it is parked for an operator. Answer "accepted", never "failed, send it again";
//   - [ErrNotLogged]: the write could not be logged, and it is not applied;
//   - [ExactlyOnce] is the [Guarantee] under which SQL need not be idempotent.
//
// [OutcomeOf] returns the meaning of an error, and bedhttp.StatusOf the HTTP status for it.
//
// A write that returns without an error is applied. The driver's own error, unchanged, is a
// refusal by the database: the write is not applied. Under Config.RunUnlogged, during an outage of
// the log, and for unlogged writes, the driver's errors mean the same as without bed.
// [ErrRowsUnknown] means that the write is applied, but the answer with its rows was lost. After
// Exec the Result's methods return it; Query returns it as its error.
//
// [RowsError] refuses a write that changed another number of rows than [RequireRows] asks.
//
// [ErrUnknownOutcome] means that the write may or may not be applied, and may or may not be
// logged. It occurs under a [Logging] other than [LogBefore], and when the context of an unlogged
// write has ended. From [SoftTransaction.End], or the Commit of a transaction of [WithTx], it
// means that the job delivers the entries in the log.
//
// A write that bed cannot accept fails before it runs or is logged. The error is one of these: the
// error of an ended context; an error with a txlog.ParamError inside, for a parameter that the log
// cannot keep; [ErrEnded], [ErrStaged], [ErrPinned], [ErrNotIdempotent], [ErrKeyUnusable],
// [ErrOrderUnusable] or [LogElsewhereError]; without a usable table of receipts an error whose text
// has the statement to run; [ErrTransactionLost] in a local transaction that the database has
// rolled back. [ErrKeyReused] answers a request under an idempotency key of another request; the
// new request is not applied.
//
// Writes for several databases go into a soft transaction ([Begin]): immediate, [Staged], or made
// [WithTx] a transaction of your own. In an immediate one, Exec leaves pending and refused writes
// for [SoftTransaction.End] to report. [SoftTransaction.Compensation] records how to compensate
// the others. [WithIdempotencyKey] gives a request an identity, so that a resend is the same
// request; [WithOrderKey] keeps writes in order.
//
// Queries and all other statements except DML pass through. Inside a local transaction writes run
// as usual; the above then holds for its Commit.
package bedsql
