// Package soak lets applications and jobs write to real servers while a nemesis breaks everything
// around them, and judges the result.
//
// Several processes of an application write to a MariaDB and a PostgreSQL under ExactlyOnce, with
// the log in each kind of database, written before, beside or after the write. Two processes of
// bed-job deliver. Some writes are entries in the application's own transaction, with rows in the
// log's database. Some must change a row that is sometimes missing. Some are parts of compensable
// groups, which are compensated because of such a row, their age or an operator. Some registers are
// written under order keys. No write is idempotent. Each is in its process's journal before it is
// sent and after its answer; see Line.
//
// A fourth run has serializable accounts on the targets, and a quarter of the writes to accounts
// changes one row. One counted try parks an entry there. Its faults do not count as tries, so the
// judge finds every entry parked because of contention.
//
// The nemesis kills, stops and replaces processes, also by another build with other settings while
// the old one drains; cuts, mutes, delays and holds back messages; kills, stops and restarts
// servers and sets them read-only; kills sessions and queries; holds locks; shifts the clock of the
// log's server by up to 40 s, by libfaketime; fills the mounted file system under a SQLite log. The
// last two are left out, with a log line, if the machine does not support them.
//
// After all faults are over and the log is worked off, History.Judge compares the answers with the
// tables. Its only knowledge of bed is the outcomes of a write. Accounts must be the sums of their
// effects, and effects must match the answers. Groups must be whole, absent or compensated as a
// whole. Receipts must be gone, and entries left in the log explained. Registers are judged by
// porcupine: some order of all operations on a row must explain all answers. Unanswered operations
// may take effect at any time. The target's own order is tried first, then any other. Of two writes
// under an order key, one accepted before the other was sent must have been applied first.
// Processes must release everything they opened.
//
// The judge is tested, too. After each run, rows are removed and doubled and answers changed, and
// it must find each change. The same work under AtLeastOnce, or with receipts removed, is doubled,
// and it must find that.
//
// Without BED_SOAK_DURATION the test is a short one on shared servers, and spares these. The
// environment variables below are set by `make soak`, or help to investigate:
//
//	BED_SOAK_DURATION  the duration of the faults, over all runs (30m)
//	BED_SOAK_SEED      the seed of the writes and faults
//	BED_SOAK_PAUSE     the mean pause of a worker between two requests (100ms)
//	BED_SOAK_BETWEEN   the mean time between two faults (600ms)
//	BED_SOAK_LOG       the only run: mysql, postgres or sqlite (the log), or serializable
//	BED_SOAK_DIR       the directory of journals and log lines
//
// There are 16 workers. With a shorter pause there are more registers and keys at a time, so that
// each gets as many writes: judging takes time and memory in proportion to the number of writes.
// BenchmarkJudge measures it.
//
// The seed fixes the choices and not the moments, so that the same seed gives a
// similar run and not the same one.
package soak
