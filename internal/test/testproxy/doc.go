// Package testproxy puts a TCP proxy in front of a database server so that a
// test can break the connection at an exact place: before a message, after it
// was carried out and before its answer, or while it is on its way.
//
// Faults are tied to messages and not to time. On MySQL's and PostgreSQL's
// protocols (recognised by their first bytes, without TLS and compression) a
// message is what the server answers as one: a whole MySQL packet, or
// PostgreSQL's messages up to the Sync or Query that ends them. On any other
// protocol it is what one read from the client gave.
package testproxy
