package testproxy

import (
	"bytes"
	"strings"
	"sync"
)

// statements are those that a client has prepared on its connection, so that it is
// known what a message runs that only names one.
type statements struct {
	mu    sync.Mutex
	texts map[string]string
	// preparing is what MySQL's server is to number next; empty: nothing.
	preparing string
}

// MySQL's commands.
const (
	comQuery       = 0x03
	comStmtPrepare = 0x16
	comStmtExecute = 0x17
)

// run gives the text that a message has the server run; empty for a message that
// runs nothing.
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

// answered reads the number that MySQL's server gives a statement, from the
// beginning of its answer.
func (s *statements) answered(answer []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.preparing != "" && len(answer) > 8 && answer[4] == 0 {
		s.texts[string(answer[5:9])] = s.preparing
	}
	s.preparing = ""
}

// HoldRun is [Proxy.Hold] for the next message that has the server run a statement
// with the given text in it, whether it carries the text or names a prepared
// statement.
func (p *Proxy) HoldRun(text string) (reached <-chan struct{}, release func()) {
	return p.hold(rule{runs: func(statement string) bool { return strings.Contains(statement, text) }})
}
