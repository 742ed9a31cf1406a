// Package mysql is bed for MySQL and MariaDB over go-sql-driver/mysql: it
// registers the wrapped driver ([Register]) and holds everything that bed must
// know about this database — how its DSNs name a data source, what its errors
// mean for a write, which values its driver takes.
package mysql
