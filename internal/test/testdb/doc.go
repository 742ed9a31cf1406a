// Package testdb gives each test a real database of its own: an empty one on a
// shared MySQL/MariaDB or PostgreSQL server, an SQLite file, or a whole private
// server that the test may kill, stop and pause.
//
// The shared servers are found once per process: by BED_TEST_MYSQL_DSN and
// BED_TEST_POSTGRES_DSN (accounts that may create databases), else at the usual
// local addresses. `make test` starts them where there are none. With -short
// only SQLite is used.
//
// A shared server takes about a hundred connections for all packages tested at
// the same time, so tests keep their pools small: [DB.Open] sets a limit of
// [MaxOpenConns], and a pool that a test opens itself should be no larger.
package testdb
