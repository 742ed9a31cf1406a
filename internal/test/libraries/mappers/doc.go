// Package mappers tests gorm and sqlx over a wrapped pool.
package mappers
