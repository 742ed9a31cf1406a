// Package simulation runs the real wrapper, log and job in one process and in
// virtual time, over servers in memory, and has a say over all that happens:
// when each message arrives, whether it is lost or its answer is, what the server
// makes of it, who is killed, how time passes. All choices come from one seed,
// and the same seed gives the same history.
//
// A history has two targets and a log, which is a server like them, with the
// store in SQL before it, or the store in memory. Two applications, up to three
// jobs (one of which is at home in another database) and an operator work with
// them as processes of their own; what a process that is killed had sent arrives
// later or not at all. The log of a write is written before it, beside it or when
// it has failed. In the end all faults are over, and a judge compares what
// the answers to the applications with what the tables and the log hold.
//
//	world_test.go       processes and what may happen next
//	faults_test.go      what happens to messages, processes and servers
//	time_test.go        leases and retentions that end
//	focus_test.go       histories that begin where chance seldom leads
//	wire_test.go        the driver and its messages
//	server_test.go, sql_test.go, statements_test.go    the servers
//	log_test.go         the log as the judge sees it
//	writers_test.go     the ways to write
//	home_test.go        and those with entries in a transaction where the log is (WithTx)
//	required_test.go    and those that must change a number of rows (RequireRows)
//	order_test.go       and those under an order key, with the log in memory and in SQL
//	groups_test.go      and in groups that can turn back
//	judge_test.go       the claims
//
// What is kept for operators beside the log (attempts, activity) is left out: the
// log of the simulation takes no such tables, but for that from which End of WithTx
// learns of discarded entries.
//
// What this cannot show: real sockets and drivers, other databases than the one
// simulated, locks that are waited for, clocks that differ. Those are the soak's.
//
// BED_SIMULATE is how many histories each search tries, BED_SIMULATE_SEED the first seed,
// BED_SIMULATE_UNTIL a claim at which the search ends, or "any".
package simulation
