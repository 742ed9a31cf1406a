// Package txlogtest is the one suite that every [txlog.Storage] has to pass: a new store
// needs no tests of its own for the interface.
package txlogtest
