// Package soak lets applications and jobs write to real servers while a nemesis
// breaks everything around them, and judges what came of it.
//
// Several processes of an application write to a MariaDB and a PostgreSQL, exactly
// once, with the log in each kind of database, written before, beside or after the
// write; two processes of bed-job deliver. Some writes are entries of a transaction of
// the application's, whose rows are in the log's database, and some must change a row,
// which is not always there. Some are parts of groups that can turn back, and do so for such
// a row, for their age or because an operator wants it; and some registers are written under
// order keys. No write is idempotent. Each is in its
// process's journal before it is sent and after it was answered; see Line.
//
// The nemesis kills, stops and replaces processes, also by another build with other
// settings while the old one drains; cuts, mutes, delays and holds back messages;
// kills, stops and restarts servers and sets them read-only; kills sessions and
// queries; holds locks; sets the clock of the log's server by up to 40 s forwards
// and back, by libfaketime; fills the file system under a log in SQLite, which is
// mounted for it. The last two it leaves out, and says so, where they cannot be.
//
// When all is healed and the log is worked off, History.Judge compares what was
// told with what the tables hold. It knows nothing of bed but the outcomes of a
// write: accounts must be the sums of their effects, effects must be those that
// got, groups whole or not there, or undone as a whole, receipts gone, and what is left in the log
// explained. Registers are judged by porcupine: an order of all operations on a row
// must explain what each was answered. What is not answered may take effect
// whenever; the order in which the target applied the changes is tried first, and
// any other if that one does not do. Of two writes under an order key, the one that was
// accepted before the other was sent must have been applied first. Processes must give back what they opened.
//
// The judge is tried: after each run rows are removed and doubled and answers
// changed, and it must find each. The same work at least once, or with receipts
// that somebody removes, is doubled, and it must find that.
//
// Without BED_SOAK_DURATION the test is a short one on shared servers, whose
// faults spare them. These environment variables are what `make soak` sets, or
// serve to look closer:
//
//	BED_SOAK_DURATION  how long faults are made for, over all kinds of log (30m)
//	BED_SOAK_SEED      the seed of what is written and what is broken
//	BED_SOAK_PAUSE     the mean pause of a worker between two requests (100ms)
//	BED_SOAK_BETWEEN   the mean time between two faults (600ms)
//	BED_SOAK_LOG       the only kind of log: mysql, postgres or sqlite
//	BED_SOAK_DIR       where journals and log lines are kept
//
// There are 16 workers. With a shorter pause there are more registers and keys at a
// time, so that each is written to as often: judging takes time and memory in
// proportion to the number of writes. BenchmarkJudge tells how much.
//
// The seed fixes the choices and not the moments, so that the same seed gives a
// similar run and not the same one.
package soak
