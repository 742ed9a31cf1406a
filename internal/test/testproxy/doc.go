// Package testproxy puts a TCP proxy in front of a database server. A test can break the connection
// at an exact place with it: before a message, after its execution and before its answer, or while
// it is on its way.
//
// Faults are tied to messages and not to time. On MySQL's and PostgreSQL's protocols (recognized by
// their first bytes, without TLS and compression) a message is everything that gets one answer: a
// whole MySQL packet, or PostgreSQL's messages up to the next Sync or Query. On other protocols it
// is the result of one read from the client.
package testproxy
