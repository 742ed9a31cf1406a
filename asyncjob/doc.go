// Package asyncjob delivers later what could not be delivered at once. [New] makes
// a job of a log and its [Targets]; [Job.Run] claims due units of the log, runs
// each again on its data source, and removes, pushes back or parks it by what the
// database said. It is Sharding-JDBC's bestEffortsDeliveryJob. The program bed-job
// is this package as a process.
//
// Data sources are independent of each other: each has rounds of its own, and one
// that is slow, down or never empty costs the others nothing. Several jobs, in one process
// or in many, may share a log: leases see to it that each unit has one owner.
//
// Units of one soft transaction that are claimed together are delivered one
// after the other, oldest first. Otherwise order holds only within a data source
// under an order key (bedsql.WithOrderKey), where a unit that is pending or parked
// holds up those behind it. Any other unit that fails holds up nothing: units that failed
// before have at most half of a data source's workers and stay in the log while many of them
// are due, and those that met contention are delivered one after the other.
package asyncjob
