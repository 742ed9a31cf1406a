// Package ops lets an operator inspect and act on a transaction log: overview, entries, errors by
// kind, trials, decisions and their audit. The console and the command line are both built on it.
// It contains no HTTP and no terminal code.
package ops
