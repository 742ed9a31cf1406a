// Package interleavings holds a model test: the real wrapper, log and job over
// servers that are simulated, with a say over when each message arrives, what
// becomes of it, and how time passes.
package interleavings
