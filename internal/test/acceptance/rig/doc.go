// Package rig is the set-up and the vocabulary of the acceptance tests: an application with its
// target, its log and its job, faults to put between them, and checks of what came of it.
package rig
