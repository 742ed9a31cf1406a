// Package asyncjob delivers later what could not be delivered at once: it
// claims due units of the transaction log, runs each again on its data source,
// and removes, pushes back or parks it by what the database said. It is
// Sharding-JDBC's bestEffortsDeliveryJob.
//
// A round serves all data sources side by side. Several jobs, in one process
// or in many, may share a log: leases see to it that each unit has one owner.
//
// Units of one soft transaction that are claimed together are delivered one
// after the other, in the order of their age. Across data sources, rounds and
// jobs there is no order, and a unit that fails does not hold up the ones
// behind it.
package asyncjob
