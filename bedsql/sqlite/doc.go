// Package sqlite is bed for SQLite over modernc.org/sqlite.
//
//   - [Register] registers the wrapped driver, which sql.Open then takes by its
//     new name;
//   - [NewConnector] wraps a connector for sql.OpenDB;
//   - [Target] reads a DSN for the job.
//
// It also lets txlog.Open keep the transaction log there.
package sqlite
