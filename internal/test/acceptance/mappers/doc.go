// Package mappers sets up gorm and sqlx over a wrapped pool, for acceptance tests.
package mappers
