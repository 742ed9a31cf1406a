// Package soak lets applications and jobs write to real servers while a nemesis
// breaks everything around them, and judges what came of it.
//
// Several processes of an application write to a MariaDB and a PostgreSQL, exactly
// once, with the log in each kind of database; two processes of bed-job deliver.
// No write is idempotent. Each is in its process's journal before it is sent and
// after it was answered; see [Line]. When all is healed and the log is worked off,
// [History.Judge] compares what was told with what the tables hold. It knows
// nothing of bed but the four outcomes of a write, and it is tried after each
// run: rows are removed and doubled, and it must find each.
//
// Without BED_SOAK_DURATION the test is a short one on shared servers. These
// environment variables are what `make soak` sets, or serve to look closer:
//
//	BED_SOAK_DURATION  how long faults are made for, over all kinds of log (30m)
//	BED_SOAK_SEED      the seed of what is written and what is broken
//	BED_SOAK_LOG       the only kind of log: mysql, postgres or sqlite
//	BED_SOAK_DIR       where journals and log lines are kept
//
// The seed fixes the choices and not the moments, so that the same seed gives a
// similar run and not the same one.
package soak
