package testproxy

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"time"
)

// rule is a single fault.
type rule struct {
	match func(message []byte) bool
	// runs, if not nil, matches the statement run by a message, instead of the message.
	runs func(statement string) bool
	// strike is done to the link in place of forwarding the message, and reports
	// whether the link goes on. It calls hit when the fault has struck.
	strike func(l *link, message []byte, hit func()) bool
	struck chan struct{}
}

// CutBefore cuts the connection instead of forwarding the next matching message from a client, so
// that the server never sees it. It then closes struck. Like all faults it strikes once. A message
// triggers only the first fault waiting for it, so two calls cut two messages.
func (p *Proxy) CutBefore(match func(message []byte) bool) (struck <-chan struct{}) {
	return p.add(rule{match: match, strike: func(l *link, _ []byte, hit func()) bool {
		l.cut()
		hit()
		return false
	}})
}

// CutAfter forwards the next matching message, lets the server carry it out and end the session,
// swallows the answer, and only then resets the client's connection. When the client sees its
// error, the message has been carried out. If the server cannot finish (it waits for a lock), the
// client waits too; see [Proxy.CutInFlight]. struck is closed before the client sees its error.
func (p *Proxy) CutAfter(match func(message []byte) bool) (struck <-chan struct{}) {
	return p.add(rule{match: match, strike: func(l *link, message []byte, hit func()) bool {
		// The server sees an orderly end: a reset could make it lose the message. When it closes
		// its own end, it has finished.
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

// Hold keeps the next matching message back until release is called. reached is closed on its
// arrival. If the client goes away meanwhile, the server still gets the message on release, as on a
// slow network.
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

// Mute forwards the next matching message, and then drops everything from the server. The
// connection stays open and silent, as behind a network that drops every packet.
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

// Replace is Answer, and also sends message to the server in place of the client's. The server's
// answer must be short; the client does not see it.
func (p *Proxy) Replace(match func(message []byte) bool, message, answer []byte) (struck <-chan struct{}) {
	return p.add(rule{match: match, strike: func(l *link, _ []byte, hit func()) bool {
		l.instead.Store(&substitute{answer, hit})
		return l.send(message)
	}})
}

// Count returns a function that counts the matching client messages since this call, regardless of
// their fate.
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

// Await waits until a fault has struck. It fails the test if the message does not come in time.
func Await(t testing.TB, struck <-chan struct{}) {
	t.Helper()
	select {
	case <-struck:
	case <-time.After(time.Minute):
		t.Fatal("testproxy: the fault has not struck: no message matched it")
	}
}

// Until returns the context of a caller whose patience ends d after a fault has struck, however
// long that takes.
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

// Forget drops the remaining faults.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
}

// SpareErasing lets no fault strike the COMMIT of a transaction that erases receipts: a wrapper
// runs it in the background, at any time after its write has returned.
func (p *Proxy) SpareErasing() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spareErasing = true
}

func (p *Proxy) add(r rule) (struck <-chan struct{}) {
	r.struck = make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, &r)
	return r.struck
}

// match takes the first waiting rule that matches a message and the statement run by it, if any.
func (p *Proxy) match(message []byte, statement string, endsErasing bool) *rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, count := range p.counters {
		count(message)
	}
	if endsErasing && p.spareErasing {
		return nil
	}
	for i, r := range p.rules {
		if r.runs != nil && r.runs(statement) || r.runs == nil && r.match(message) {
			p.rules = slices.Delete(p.rules, i, i+1)
			return r
		}
	}
	return nil
}

// Text matches a message containing the given text, in any case: MySQL's driver sends COMMIT and
// pgx sends commit. COMMIT is [Commit].
func Text(text string) func(message []byte) bool {
	upper := bytes.ToUpper([]byte(text))
	if string(upper) == "COMMIT" {
		return Commit
	}
	return func(message []byte) bool { return bytes.Contains(bytes.ToUpper(message), upper) }
}

// Commit matches a message with COMMIT in it, not only the name of an isolation level.
func Commit(message []byte) bool {
	rest := bytes.ReplaceAll(bytes.ToUpper(message), []byte("COMMITTED"), nil)
	return bytes.Contains(rest, []byte("COMMIT"))
}

// MySQLExecute matches the execution of a prepared statement. It does not carry the statement's
// text.
func MySQLExecute(message []byte) bool {
	return len(message) > 4 && message[3] == 0 && message[4] == comStmtExecute
}

// PostgresExecute matches the execution of a prepared statement. pgx sends one for every statement
// with arguments, without the statement's text.
func PostgresExecute(message []byte) bool {
	return len(message) > 5 && message[0] == 'B'
}
