package testproxy

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

func mysqlPacket(seq byte, payload []byte) []byte {
	n := len(payload)
	return append([]byte{byte(n), byte(n >> 8), byte(n >> 16), seq}, payload...)
}

func pgMessage(kind byte, body string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4))
	return append(b, body...)
}

func pgStartup(code uint32, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(body)+8))
	return append(binary.BigEndian.AppendUint32(b, code), body...)
}

var (
	mysqlGreeting = mysqlPacket(0, []byte("\x0a10.11-MariaDB"))
	mysqlLogin    = mysqlPacket(1, []byte{0x0d, 0xa2, 0, 0, 0, 0, 0, 0})
)

func TestMessagesAreTheSameHoweverTheBytesArrive(t *testing.T) {
	long := mysqlPacket(0, append([]byte{3}, bytes.Repeat([]byte("x"), 1<<24-2)...))
	pgLogin := pgStartup(3<<16, "user\x00u\x00\x00")
	execute := slices.Concat(pgMessage('B', "\x00stmt\x00"), pgMessage('D', "P\x00"), pgMessage('E', "\x00\x00\x00\x00\x00"), pgMessage('S', ""))
	for _, c := range []struct {
		name     string
		greeting []byte
		messages [][]byte
		pieces   []int
	}{
		{"mysql", mysqlGreeting, [][]byte{mysqlLogin, mysqlPacket(0, []byte("\x03SELECT 1")), mysqlPacket(0, []byte("\x03COMMIT"))}, []int{1, 5, 1000}},
		{"mysql, longer than a packet", mysqlGreeting, [][]byte{mysqlLogin, append(long, mysqlPacket(1, []byte("rest"))...), mysqlPacket(0, []byte("\x01"))}, []int{1 << 16, 1 << 25}},
		{"postgres", nil, [][]byte{pgLogin, pgMessage('p', "pw\x00"), execute, pgMessage('Q', "commit\x00"), execute}, []int{8, 9, 1000}},
		{"postgres, encryption refused", nil, [][]byte{pgStartup(80877103, ""), pgLogin, pgMessage('Q', "commit\x00")}, []int{8, 1000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			stream := slices.Concat(c.messages...)
			for _, size := range c.pieces {
				var f framer
				if c.greeting != nil {
					f.serverSaid(c.greeting)
				}
				var got [][]byte
				for piece := range slices.Chunk(stream, size) {
					got = append(got, f.push(piece)...)
				}
				if !slices.EqualFunc(got, c.messages, bytes.Equal) {
					t.Errorf("in pieces of %d: %d messages, want %d", size, len(got), len(c.messages))
				}
			}
		})
	}
}

func TestUnknownProtocolPassesThrough(t *testing.T) {
	for _, c := range []struct {
		name     string
		greeting []byte
		then     []byte
	}{
		{"another server that speaks first", []byte("220 ready\r\n"), []byte("x")},
		{"another client that speaks first", nil, []byte("x")},
	} {
		t.Run(c.name, func(t *testing.T) {
			var f framer
			if c.greeting != nil {
				f.serverSaid(c.greeting)
			}
			if got := f.push(c.then); len(got) != 1 || !bytes.Equal(got[0], c.then) {
				t.Errorf("%q came out as %q", c.then, got)
			}
		})
	}
}
