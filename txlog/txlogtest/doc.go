// Package txlogtest is the one suite that every [txlog.Storage] has to pass: a
// new store writes no tests of its own for what the interface promises.
package txlogtest
