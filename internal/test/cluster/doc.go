// Package cluster tests bed with more than one database server: on a Galera cluster, on a
// PostgreSQL with a synchronous standby to promote, and behind PgBouncer. Applications and jobs on
// every node write to hot rows under ExactlyOnce while nodes are killed, cut off, made read-only or
// slow. In the end the sums must match the answers to the applications.
//
// It runs in a short form with all the tests. `make test-cluster` sets BED_TEST_CLUSTER=full and
// runs it whole.
package cluster
