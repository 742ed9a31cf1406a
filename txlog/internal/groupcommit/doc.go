// Package groupcommit lets concurrent callers share a write to a database, and
// repeats a write whose answer was lost until its outcome is known. It knows no
// SQL: its user says what a write is, and what its errors mean.
//
// A caller that finds nothing in flight writes at once, alone. A caller that
// comes while as many writes as are worthwhile are in flight queues, and all that
// are queued leave together when one of these is answered: no timer, and no
// goroutine while nothing is queued.
//
// Words: a request is what one caller wants written, all or none of it; a group
// is the requests that share a write; a flight is a write in flight. A write is in
// doubt when it is not known whether it was made.
package groupcommit
