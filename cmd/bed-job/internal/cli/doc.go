// Package cli is the command bed-job: the delivery process, and the commands to inspect, retry and
// discard entries.
package cli
