// Package listener tells what happens to a write: a [Bus] spreads an [Event] of each
// attempt to those who [Bus.Subscribe]. Set one as Bus of bedsql.Config and
// asyncjob.Config.
//
// It also holds what the project exists for, [BestEfforts], which logs a write before
// it runs and makes it arrive afterwards. The roles are those of Sharding-JDBC 1.x,
// whose BestEffortsDeliveryListener subscribes to its execution events.
package listener
