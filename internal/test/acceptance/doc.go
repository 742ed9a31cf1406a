// Package acceptance holds the tests of the promises of the project as a whole: each row of the rule
// of truth, each mistake that a simple port would make, and the programs of users. Each promise has a
// package of its own. The tests run the wrapper, the log and the job together on real databases;
// package rig sets these up.
package acceptance
