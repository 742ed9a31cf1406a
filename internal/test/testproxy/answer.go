package testproxy

import "encoding/binary"

// MySQLError is a server's answer, of MySQL's protocol, to a command: an error.
func MySQLError(number uint16, state, text string) []byte {
	const answer, isError = 1, 0xff
	body := append(binary.LittleEndian.AppendUint16([]byte{isError}, number), "#"+state+text...)
	return append([]byte{byte(len(body)), byte(len(body) >> 8), 0, answer}, body...)
}

// MySQLQuery is a client's command of MySQL's protocol.
func MySQLQuery(text string) []byte {
	const comQuery = 3
	n := len(text) + 1
	return append([]byte{byte(n), byte(n >> 8), 0, 0, comQuery}, text...)
}

// PostgresError is the answer of a PostgreSQL server to a simple query or a Sync: an error that
// leaves the session in the state status ('I' idle, 'T' in a transaction, 'E' in a failed one).
func PostgresError(code, text string, status byte) []byte {
	body := "SERROR\x00VERROR\x00C" + code + "\x00M" + text + "\x00\x00"
	return append(postgresMessage('E', body), postgresMessage('Z', string(status))...)
}

func postgresMessage(kind byte, body string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4)), body...)
}
