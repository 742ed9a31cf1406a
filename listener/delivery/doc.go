// Package delivery makes one attempt to run a unit on one connection and says
// how it ended: applied, not applied, or not known. What differs between
// databases (how an error is to be read, which values a driver takes) is in
// a [Dialect], supplied by the database's own package.
package delivery
