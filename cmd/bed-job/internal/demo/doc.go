// Package demo demonstrates bed: two SQLite databases, real faults, and each of the four ways of a
// write.
package demo
