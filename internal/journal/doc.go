// Package journal keeps information for operators beside the transaction log, in tables of
// the log's own database: failed attempts (bed_attempt), outcomes of writes by minute
// (bed_activity), actions of operators (bed_audit), and controls of data sources with the
// jobs' view of them (bed_data_source). Writes do not depend on it: without a table, or
// without rights, the information is lost.
package journal
