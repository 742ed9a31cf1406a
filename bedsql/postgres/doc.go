// Package postgres is bed for PostgreSQL over pgx's database/sql driver.
//
//   - [Register] registers the wrapped driver, which sql.Open then takes by its
//     new name;
//   - [NewConnector] wraps a connector for sql.OpenDB;
//   - [Target] reads a DSN for the job, [TargetOf] a configuration.
//
// It also lets txlog.Open keep the transaction log there.
package postgres
