// Package acceptance holds the tests of what the project promises as a whole:
// one for each row of the rule of truth, one or more for each point where a
// simple port goes wrong, and the programs of users. They run the wrapper, the
// log and the job together on real databases.
package acceptance
