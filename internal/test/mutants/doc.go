// Package mutants puts the faults of testdata/mutants into the code, one after the other, and
// demands that the simulation notices each. It must fail with the mutant's claim, within the
// mutant's number of histories. The source tree stays unchanged.
package mutants
