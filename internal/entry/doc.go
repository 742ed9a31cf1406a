// Package entry holds what an entry of the transaction log is made of: a [Unit] with its
// statements, parameters, lease and place under order keys, and the requests of bed's own
// packages to the log.
package entry
