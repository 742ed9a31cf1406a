// Package cli is the command bed-job: the delivery process and the commands
// that inspect, retry and discard what the transaction log holds.
package cli
