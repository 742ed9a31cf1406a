// Package mutants puts the faults of testdata/mutants into the code, one after the other, and
// demands that the simulation notices each. It must fail with the mutant's claim, within the
// mutant's number of histories. The simulation has no HTTP services: a fault in what they do must be
// noticed by the named test of another package, on SQLite. The source tree stays unchanged.
package mutants
