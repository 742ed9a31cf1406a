// Package bench measures the cost of delivery beside the bare driver and the alternatives. `make
// bench` runs it; docs/benchmarks.md explains the figures.
//
// All contenders of a scene (a number of callers, a distance of the servers) do the same work in
// the same process, in turns, round by round. A figure is the median of its ratios to the bare
// driver of the same round, so a slow spell of the machine affects both sides. After each turn
// bench checks that the work was done once, and that log and receipts were used and are gone.
package bench
