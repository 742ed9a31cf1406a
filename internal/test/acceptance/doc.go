// Package acceptance tests the promises of the project as a whole: each row of the rule of truth,
// each mistake that a simple port would make, and the programs of users. The tests run the wrapper,
// the log and the job together on real databases.
package acceptance
