// Package ops is what an operator sees of a transaction log and does with it:
// overview, entries, errors by kind, trials, decisions and their audit. The
// console and the command line are both built on it. It knows no HTTP and no
// terminal.
package ops
