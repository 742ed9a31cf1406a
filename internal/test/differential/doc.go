// Package differential runs the same random statements through a wrapped driver and through the
// bare one, each with a database of its own on the same server, and demands equality: of results
// and errors, of the session's functions, and of the tables.
//
// Its input is data, in testdata for each database: NAME.schema.sql holds the tables,
// NAME.statements the statements with placeholders for random values, NAME.variants the parameters
// of the DSN. A line of statements is
//
//	[weight] [at-least-once:] SQL with {class} for a value
//
// Classes are in values_test.go. "at-least-once:" excludes a statement from programs under
// ExactlyOnce; the comment above it has the reason.
//
// NAME.cases are programs with past differences, always run. NAME.failing are failing statements,
// and NAME.session the questions to the session after each.
//
// A second test opens applications by random DSNs, under several accounts and behind a pooler, and
// lets jobs with other accounts deliver their writes.
//
// docs/exactly-once.md lists the permitted differences with their reasons. Two things are left out:
// DSNs with autocommit=0, which the wrapper refuses, and soft transactions, because they answer
// failed writes differently on purpose.
//
// Each failure prints the seed and the shortest program found for it. These environment variables
// help to investigate:
//
//	BED_FUZZ_SEED     the seed of the first program, to see a failure again
//	BED_FUZZ_TIME     how long to go on with new programs (10m); default one each
//	BED_FUZZ_VARIANT  the only number of a variant to run
package differential
