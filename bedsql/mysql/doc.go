// Package mysql is bed for MySQL and MariaDB over go-sql-driver/mysql.
//
//   - [Register] registers the wrapped driver, which sql.Open then takes by its
//     new name;
//   - [NewConnector] wraps a connector for sql.OpenDB;
//   - [Target] reads a DSN for the job, [TargetOf] a Config.
//
// It also lets txlog.Open keep the transaction log there.
package mysql
