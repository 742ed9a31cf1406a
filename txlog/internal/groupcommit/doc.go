// Package groupcommit lets concurrent callers share a write to a database, and repeats a
// write after a lost answer until its outcome is known. It contains no SQL: the user of the
// package defines a write and the meaning of its errors.
//
// A caller that finds no write in flight writes at once, alone. Once the worthwhile number
// of writes is in flight, further callers queue. All of them leave together at the next
// answer: there is no timer, and no goroutine while the queue is empty.
//
// Words: a request is the write of one caller, all or none of it; a group is the requests
// that share a write; a flight is a write in flight. A write is in doubt while its outcome
// is unknown.
package groupcommit
