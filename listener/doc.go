// Package listener reports the progress of writes: a [Bus] sends an [Event] about each
// attempt to its subscribers ([Bus.Subscribe]). Set one as Bus of bedsql.Config and
// asyncjob.Config. The events are those of Sharding-JDBC 1.x, and a few more. The package
// also holds the final errors of a write.
package listener
