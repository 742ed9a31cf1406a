package testproxy

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"time"
)

// rule is a fault that strikes once.
type rule struct {
	match func(message []byte) bool
	// runs, if not nil, is asked about the statement that a message runs instead.
	runs func(statement string) bool
	// strike is done to the link in place of forwarding the message, and reports
	// whether the link goes on. It calls hit when the fault has struck.
	strike func(l *link, message []byte, hit func()) bool
	struck chan struct{}
}

// CutBefore cuts the connection instead of forwarding the next message from a
// client that matches: the server never sees it. struck is closed when that
// has happened. Like all faults it strikes once; a message is taken by the
// first of those that wait for it, so asking twice cuts two messages.
func (p *Proxy) CutBefore(match func(message []byte) bool) (struck <-chan struct{}) {
	return p.add(rule{match: match, strike: func(l *link, _ []byte, hit func()) bool {
		l.cut()
		hit()
		return false
	}})
}

// CutAfter forwards the next matching message, lets the server carry it out
// and end the session, swallows the answer, and only then resets the client's
// connection: when the client sees its error, what it sent has been done. A
// message that the server cannot finish (it waits for a lock) holds the client
// up; see [Proxy.CutInFlight]. struck is closed before the client sees its error.
func (p *Proxy) CutAfter(match func(message []byte) bool) (struck <-chan struct{}) {
	return p.add(rule{match: match, strike: func(l *link, message []byte, hit func()) bool {
		// The server learns that nothing more comes instead of being reset,
		// which could make it lose the message. Its own end of the
		// connection then says that it is through with it.
		l.swallow.Store(true)
		if l.send(message) {
			closeWrite(l.server)
			select {
			case <-l.serverDone:
			case <-l.ctx.Done():
			}
		}
		hit()
		l.cut()
		return false
	}})
}

// CutInFlight forwards the next matching message and resets the client's
// connection at once, while the server still works on it. The server then
// finishes, sees the end of the connection and ends the session.
func (p *Proxy) CutInFlight(match func(message []byte) bool) (struck <-chan struct{}) {
	return p.add(rule{match: match, strike: func(l *link, message []byte, hit func()) bool {
		l.swallow.Store(true)
		sent := l.send(message)
		reset(l.client)
		if sent {
			closeWrite(l.server)
		}
		hit()
		return false
	}})
}

// Hold keeps the next matching message back until release is called. reached
// is closed when it has arrived. A client that goes away meanwhile does not
// take the message back: as on a slow network, the server gets it on release.
func (p *Proxy) Hold(match func(message []byte) bool) (reached <-chan struct{}, release func()) {
	return p.hold(rule{match: match})
}

func (p *Proxy) hold(r rule) (reached <-chan struct{}, release func()) {
	released := make(chan struct{})
	r.strike = func(l *link, message []byte, hit func()) bool {
		hit()
		select {
		case <-released:
			return l.send(message)
		case <-l.ctx.Done():
			return false
		}
	}
	return p.add(r), sync.OnceFunc(func() { close(released) })
}

// Mute forwards the next matching message and nothing that the server says from
// then on: the connection stays open and is silent, as behind a network that
// drops every packet.
func (p *Proxy) Mute(match func(message []byte) bool) (struck <-chan struct{}) {
	return p.add(rule{match: match, strike: func(l *link, message []byte, hit func()) bool {
		l.swallow.Store(true)
		hit()
		return l.send(message)
	}})
}

// Answer gives the client answer (see [MySQLError] and [PostgresError]) in
// place of forwarding the next matching message: the server never sees it, and
// the session goes on.
func (p *Proxy) Answer(match func(message []byte) bool, answer []byte) (struck <-chan struct{}) {
	return p.add(rule{match: match, strike: func(l *link, _ []byte, hit func()) bool {
		_, err := l.client.Write(answer)
		hit()
		return err == nil
	}})
}

// Replace is Answer, and the server is sent message in place of the client's.
// What the server says to it, which must be short, the client does not see.
func (p *Proxy) Replace(match func(message []byte) bool, message, answer []byte) (struck <-chan struct{}) {
	return p.add(rule{match: match, strike: func(l *link, _ []byte, hit func()) bool {
		l.instead.Store(&substitute{answer, hit})
		return l.send(message)
	}})
}

// Count returns a function that says how many messages from clients have
// matched since, whatever became of them.
func (p *Proxy) Count(match func(message []byte) bool) func() int {
	n := 0
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counters = append(p.counters, func(message []byte) {
		if match(message) {
			n++
		}
	})
	return func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return n
	}
}

// Await waits until a fault has struck. A message that does not come fails the test
// instead of holding it up for ever.
func Await(t testing.TB, struck <-chan struct{}) {
	t.Helper()
	select {
	case <-struck:
	case <-time.After(time.Minute):
		t.Fatal("testproxy: the fault has not struck: no message matched it")
	}
}

// Until gives the context of a caller who waits for an answer until d after a fault has
// struck, however long it took to get there.
func Until(t testing.TB, struck <-chan struct{}, d time.Duration) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		select {
		case <-struck:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}()
	return ctx
}

// Forget drops the faults that have not struck.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
}

func (p *Proxy) add(r rule) (struck <-chan struct{}) {
	r.struck = make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, &r)
	return r.struck
}

// match takes the first rule for a message, which runs a statement or none, out of
// those that wait.
func (p *Proxy) match(message []byte, statement string) *rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, count := range p.counters {
		count(message)
	}
	for i, r := range p.rules {
		if r.runs != nil && r.runs(statement) || r.runs == nil && r.match(message) {
			p.rules = slices.Delete(p.rules, i, i+1)
			return r
		}
	}
	return nil
}

// Text matches a message that holds the given text, in any case of letters:
// MySQL's driver sends COMMIT and pgx sends commit.
func Text(text string) func(message []byte) bool {
	upper := bytes.ToUpper([]byte(text))
	return func(message []byte) bool { return bytes.Contains(bytes.ToUpper(message), upper) }
}

// Commit matches a message with COMMIT in it, and none that names an isolation level.
func Commit(message []byte) bool { return Text("COMMIT")(message) && !Text("COMMITTED")(message) }

// MySQLExecute matches the execution of a prepared statement, which does not
// carry the statement's text.
func MySQLExecute(message []byte) bool {
	return len(message) > 4 && message[3] == 0 && message[4] == comStmtExecute
}

// PostgresExecute matches the execution of a prepared statement, which pgx
// sends for every statement with arguments and which does not carry the
// statement's text.
func PostgresExecute(message []byte) bool {
	return len(message) > 5 && message[0] == 'B'
}
