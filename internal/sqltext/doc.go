// Package sqltext reads just enough of a SQL text to find its meaning for delivery: DML to
// log, transaction control, session state, or something to pass through. For a DML it also
// finds the ways in which a second run may have another effect.
//
// It reads a text like a database with its default settings. It does not see a session's
// changes to them: under MySQL's NO_BACKSLASH_ESCAPES or PostgreSQL's
// standard_conforming_strings=off a quote may end elsewhere. It does not see the effects of
// a called function: it knows only the databases' own functions that touch the session, by
// name.
//
// It also writes bed's own statements for each database, see [Flavor.Text].
package sqltext
