// Package simulation runs the real wrapper, log and job in one process and in virtual time, over
// servers in memory. It controls every event: when a message arrives, whether the message or its
// answer is lost, how the server treats it, which process is killed, how time passes. All choices
// come from one seed, and the same seed gives the same history.
//
// A history has two targets and a log. The log is a server like the targets, with the store in SQL
// before it, or the store in memory. Two applications, up to three jobs (one with its home in
// another database) and an operator work as processes of their own. Messages sent by a killed
// process arrive later or not at all. A write is logged before it, beside it or after its failure.
// In the end all faults are over, and a judge compares the applications' answers with the tables
// and the log.
//
//	world_test.go       processes and the possible next steps
//	faults_test.go      fates of messages, processes and servers
//	time_test.go        ends of leases and retentions
//	focus_test.go       histories with rare beginnings
//	wire_test.go        the driver and its messages
//	server_test.go, sql_test.go, statements_test.go    the servers
//	log_test.go         the log as the judge sees it
//	writers_test.go     the ways to write
//	home_test.go        and with entries in a transaction at the log (WithTx)
//	required_test.go    and with a required number of rows (RequireRows)
//	order_test.go       and under an order key, with the log in memory and in SQL
//	groups_test.go      and in compensable groups
//	judge_test.go       the claims
//
// The operators' tables beside the log (attempts, activity) are left out. The simulated log has
// only the one from which End of WithTx learns of discarded entries.
//
// The simulation cannot show real sockets and drivers, other databases than the simulated one,
// waits for locks, and differing clocks. These are the soak's subjects.
//
// BED_SIMULATE is the number of histories in each search, BED_SIMULATE_SEED the first seed,
// BED_SIMULATE_UNTIL a claim at which the search ends, or "any".
package simulation
