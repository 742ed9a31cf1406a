package attempt

import (
	"database/sql/driver"

	"github.com/bedsql/bed/listener/delivery"
)

// Session is a connection together with what its dialect remembers of it. The
// functions of this package take one wherever they take a driver.Conn, and use
// the connection in it. Like that it belongs to one goroutine at a time.
type Session struct {
	driver.Conn
	// Memory is the dialect's own; nil at first.
	Memory any
	// Facts are of its dial.
	Facts delivery.Facts

	closed bool
}

// Close closes the connection once, however often it is called.
func (s *Session) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	return s.Conn.Close()
}

// Bare gives the driver's own connection.
func Bare(conn driver.Conn) driver.Conn {
	if s, ok := conn.(*Session); ok {
		return s.Conn
	}
	return conn
}
