// Package bedsql wraps a database/sql driver so that every write is delivered
// with best efforts: it is logged before it runs, retried at once when it
// fails, and left to the job when that fails too.
//
// An application registers a wrapped driver by its database's package
// (bedsql/mysql, bedsql/postgres, bedsql/sqlite) and opens it by the new name;
// nothing else changes. When a write returns, exactly one of four things is
// true, and its error tells which:
//
//   - no error: it is applied, and its log is gone;
//   - the driver's own error, unchanged: the database refused it, it is not applied;
//   - [ErrPending]: it is logged and not known to be applied; the job delivers it.
//     Answer "accepted", never "failed, send it again";
//   - [ErrNotLogged]: it was never sent.
//
// Queries and everything else that is no DML pass through untouched.
package bedsql
