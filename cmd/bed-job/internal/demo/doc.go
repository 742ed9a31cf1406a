// Package demo shows what bed does: two SQLite databases, real faults, and
// each of the four ways a write can take.
package demo
