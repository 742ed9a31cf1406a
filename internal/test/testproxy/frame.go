package testproxy

import (
	"bytes"
	"encoding/binary"
	"sync"
)

type protocol int

const (
	undecided protocol = iota
	raw
	mysqlPackets
	postgresStartup
	postgresMessages
)

// framer cuts a client's bytes into messages, so that faults strike the same place however the
// network divides or joins the bytes. It leaves unknown protocols as they come. It cannot follow
// TLS and compression.
type framer struct {
	mu       sync.Mutex
	protocol protocol
	buffer   []byte
}

// serverSaid recognizes MySQL. There the server speaks first: its greeting is packet number 0 and
// begins with the protocol's version, 10.
func (f *framer) serverSaid(b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.protocol != undecided {
		return
	}
	f.protocol = raw
	if len(b) > 4 && b[3] == 0 && b[4] == 10 {
		f.protocol = mysqlPackets
	}
}

// of returns the recognized protocol.
func (f *framer) of() protocol {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.protocol
}

// push takes the bytes of a read and returns the complete messages.
func (f *framer) push(b []byte) [][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buffer = append(f.buffer, b...)
	if f.protocol == undecided && len(f.buffer) > 0 {
		f.protocol = raw
		if isPostgresStartup(f.buffer) {
			f.protocol = postgresStartup
		}
	}
	var messages [][]byte
	for len(f.buffer) > 0 {
		n := f.next()
		if n == 0 {
			break
		}
		messages = append(messages, bytes.Clone(f.buffer[:n]))
		f.buffer = f.buffer[n:]
	}
	return messages
}

// next is the length of the first message in the buffer, 0 if incomplete.
func (f *framer) next() int {
	switch f.protocol {
	case mysqlPackets:
		return f.nextMySQL()
	case postgresStartup:
		return f.nextPostgresStartup()
	case postgresMessages:
		return f.nextPostgres()
	default:
		return len(f.buffer)
	}
}

// nextMySQL joins the packets of an overlong message.
func (f *framer) nextMySQL() int {
	const header, longest = 4, 1<<24 - 1
	end := 0
	for {
		if len(f.buffer) < end+header {
			return 0
		}
		size := int(f.buffer[end]) | int(f.buffer[end+1])<<8 | int(f.buffer[end+2])<<16
		end += header + size
		if len(f.buffer) < end {
			return 0
		}
		if size < longest {
			return end
		}
	}
}

// nextPostgresStartup handles the messages without a type at the beginning.
func (f *framer) nextPostgresStartup() int {
	if len(f.buffer) < 8 {
		return 0
	}
	size := int(binary.BigEndian.Uint32(f.buffer))
	if size < 8 || len(f.buffer) < size {
		return 0
	}
	if binary.BigEndian.Uint32(f.buffer[4:])>>16 == postgresMajor {
		f.protocol = postgresMessages
	}
	return size
}

// nextPostgres joins the messages up to a common answer.
func (f *framer) nextPostgres() int {
	const parse, bind, describe, execute, closing = 'P', 'B', 'D', 'E', 'C'
	end := 0
	for {
		if len(f.buffer) < end+5 {
			return 0
		}
		kind := f.buffer[end]
		end += 1 + int(binary.BigEndian.Uint32(f.buffer[end+1:]))
		if len(f.buffer) < end {
			return 0
		}
		switch kind {
		case parse, bind, describe, execute, closing:
		default:
			return end
		}
	}
}

const postgresMajor = 3

// isPostgresStartup recognizes a startup message or a request of the same form (for encryption, to
// cancel).
func isPostgresStartup(b []byte) bool {
	const longest, requestMajor = 10000, 1234
	if len(b) < 8 {
		return false
	}
	size, major := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])>>16
	return size >= 8 && size <= longest && (major == postgresMajor || major == requestMajor)
}
