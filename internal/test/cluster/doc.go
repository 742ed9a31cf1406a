// Package cluster tests bed where one database server is not enough: on a Galera
// cluster, on a PostgreSQL with a synchronous standby that is promoted, and behind
// PgBouncer. Applications and jobs on every node write to hot rows under
// exactly-once while nodes are killed, cut off, made read-only or slow; in the end
// the sums are those of the answers to the applications.
//
// It runs in a short form with all the tests, and whole by make test-cluster, which
// sets BED_TEST_CLUSTER=full.
package cluster
