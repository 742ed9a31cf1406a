// Package mutants puts the faults of testdata/mutants into the code, one after
// the other, and demands that the simulation notices each: that it fails with the
// claim that the mutant names, within the histories that it names. The tree
// itself stays as it is.
package mutants
