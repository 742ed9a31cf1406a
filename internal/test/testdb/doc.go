// Package testdb gives each test a real database of its own: an empty one on a shared MySQL/MariaDB
// or PostgreSQL server, an SQLite file, or a whole private server for the test to kill, stop and
// pause.
//
// Each process finds the shared servers once: by BED_TEST_MYSQL_DSN and BED_TEST_POSTGRES_DSN
// (accounts with the right to create databases), else at the usual local addresses. `make test`
// starts missing ones. With -short only SQLite is used.
//
// A shared server takes about a hundred connections for all packages tested at the same time, so
// tests keep their pools small: [DB.Open] sets a limit of [MaxOpenConns], and a test's own pools
// should be no larger.
package testdb
