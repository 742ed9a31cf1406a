// Package bench measures what delivery costs beside the bare driver and beside
// what else there is. `make bench` runs it; docs/benchmarks.md explains the
// figures.
//
// All contenders of a scene (how many callers, how far the servers are) do the
// same work in the same process, in turns, round by round. A figure is the
// median of its ratios to the bare driver of the same round, so that what
// slows the machine down for a while slows both. After each turn it is checked
// that the work was done, once, and that log and receipts were used and are
// gone.
package bench
