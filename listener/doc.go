// Package listener carries what happens to a write from its execution to those
// who listen: events, the bus that spreads them, and the listener that the
// project exists for, [BestEfforts], which logs a write before it runs and
// makes it arrive afterwards. The roles are those of Sharding-JDBC 1.x, whose
// BestEffortsDeliveryListener subscribes to its execution events.
package listener
