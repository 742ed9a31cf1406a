package testproxy

import (
	"bytes"
	"strings"
	"sync"
)

// statements are the prepared statements of a connection, for messages that only name the statement
// they run.
type statements struct {
	mu    sync.Mutex
	texts map[string]string
	// preparing is the text that MySQL's server is about to number, if any.
	preparing string
}

// MySQL's commands.
const (
	comQuery       = 0x03
	comStmtPrepare = 0x16
	comStmtExecute = 0x17
)

// run returns the text of the statement run by a message; empty for a message without one.
func (s *statements) run(p protocol, message []byte) (text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.texts == nil {
		s.texts = map[string]string{}
	}
	switch {
	case p == mysqlPackets && len(message) > 5 && message[3] == 0:
		switch body := message[5:]; message[4] {
		case comQuery:
			return string(body)
		case comStmtPrepare:
			s.preparing = string(body)
		case comStmtExecute:
			return s.texts[string(body[:min(4, len(body))])]
		}
	case p == postgresMessages && len(message) > 5:
		first, rest, _ := bytes.Cut(message[5:], []byte{0})
		second, _, _ := bytes.Cut(rest, []byte{0})
		switch message[0] {
		case 'Q':
			return string(first)
		case 'P': // Parse: a name, and the text
			s.texts[string(first)] = string(second)
		case 'B': // Bind: a portal, and the name
			return s.texts[string(second)]
		}
	}
	return ""
}

// answered reads the number of a statement from the beginning of MySQL's answer.
func (s *statements) answered(answer []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.preparing != "" && len(answer) > 8 && answer[4] == 0 {
		s.texts[string(answer[5:9])] = s.preparing
	}
	s.preparing = ""
}

// HoldRun is [Proxy.Hold] for the next message that runs a statement containing the text, by its
// text or by the name of a prepared statement.
func (p *Proxy) HoldRun(text string) (reached <-chan struct{}, release func()) {
	return p.hold(rule{runs: func(statement string) bool { return strings.Contains(statement, text) }})
}
