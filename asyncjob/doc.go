// Package asyncjob delivers writes that could not be delivered at once. [New] makes a job
// from a log and its [Targets]. [Job.Run] claims due units of the log and runs each again on
// its data source; by the database's answer it removes, pushes back or parks the unit. It is
// Sharding-JDBC's bestEffortsDeliveryJob. The program bed-job is this package as a process.
//
// Data sources are independent: each has rounds of its own, and a slow, unreachable or never
// empty one costs the others nothing. Several jobs, in one process or in many, may share a
// log: leases give each unit one owner.
//
// Units of one soft transaction that are claimed together are delivered one after the other,
// oldest first. Other order exists only within a data source under an order key
// (bedsql.WithOrderKey): there a pending or parked unit holds up the units behind it. Any
// other failed unit holds up no others. Units with an earlier failure have at most half of a
// data source's workers, and stay in the log while many of them are due. Units after
// contention are delivered one after the other.
package asyncjob
