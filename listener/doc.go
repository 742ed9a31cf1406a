// Package listener tells what happens to a write: a [Bus] spreads an [Event] of each
// attempt to those who [Bus.Subscribe]. Set one as Bus of bedsql.Config and
// asyncjob.Config. It also holds the errors that a write ends with. The events are
// those of Sharding-JDBC 1.x.
package listener
