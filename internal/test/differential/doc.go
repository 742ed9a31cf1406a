// Package differential holds a test that runs the same random statements
// through a wrapped driver and through the bare one, each with a database of its
// own on the same server, and demands that nothing tells them apart: results and
// errors of each statement, what the session's functions say, and the tables.
//
// What it runs is data, in testdata for each database: NAME.schema.sql holds the
// tables, NAME.statements the statements with placeholders for random values,
// NAME.variants the parameters of the DSN. A line of statements is
//
//	[weight] [at-least-once:] SQL with {class} for a value
//
// where a class is one of those in values_test.go and "at-least-once:" keeps a statement
// from programs under ExactlyOnce, with the reason in the comment above it.
//
// NAME.cases are programs that once showed a difference, run always; NAME.failing
// are statements that fail, and NAME.session what the session is asked after each.
//
// A second test opens applications by random DSNs, under several accounts and behind
// a pooler, and has jobs with other accounts deliver what they would have written.
//
// What may differ, and why, is in docs/exactly-once.md. Left out are a DSN with
// autocommit=0, which the wrapper refuses, and soft transactions, which answer a
// write that fails otherwise on purpose.
//
// The seed is printed with each failure, and so is the shortest program found
// that still shows it. These environment variables serve to look closer:
//
//	BED_FUZZ_SEED     the seed of the first program, to see a failure again
//	BED_FUZZ_TIME     how long to go on with new programs (10m); default one each
//	BED_FUZZ_VARIANT  the only number of a variant to run
package differential
