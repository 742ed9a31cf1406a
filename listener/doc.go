// Package listener reports what happens to a write: a [Bus] spreads an [Event] of
// each attempt to its subscribers ([Bus.Subscribe]). Set one as Bus of bedsql.Config
// and asyncjob.Config. The events are those of Sharding-JDBC 1.x, and a few more. The
// package also holds the errors with which a write ends.
package listener
