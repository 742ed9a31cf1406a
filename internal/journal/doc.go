// Package journal keeps what operators want to know beside the transaction log,
// in tables of the log's own database: the attempts that failed (bed_attempt),
// what happened to the writes of each minute (bed_activity), what operators did
// (bed_audit), and what holds for a data source and how the jobs see it
// (bed_data_source). Writes do not depend on it: where a table is missing or the
// account lacks rights, nothing is recorded.
package journal
