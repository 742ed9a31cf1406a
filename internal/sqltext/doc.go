// Package sqltext reads just enough of a SQL text to say what running it
// means for delivery: DML to be logged, transaction control, session state, or
// something to be passed through. Of a DML it also says in what ways running it
// twice is not running it once.
//
// It reads a text as a database with its default settings does. What a session
// can change about that is not known here: under MySQL's NO_BACKSLASH_ESCAPES
// or PostgreSQL's standard_conforming_strings=off a quote may end elsewhere.
// Nor is what a called function does: only the databases' own functions that
// touch the session are known, by name.
//
// It also writes bed's own statements as each database wants them, see [Flavor.Text].
package sqltext
