// Package sqlite is bed for SQLite over modernc.org/sqlite: it registers the
// wrapped driver ([Register]) and holds everything that bed must know about
// this database — how its DSNs name a data source, what its errors mean for a
// write, when it rolls a transaction back by itself.
package sqlite
