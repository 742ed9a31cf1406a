// Package postgres is bed for PostgreSQL over pgx's database/sql driver: it
// registers the wrapped driver ([Register]) and holds everything that bed must
// know about this database — how its DSNs name a data source, what its errors
// mean for a write, how the values its driver takes are kept in the log.
package postgres
