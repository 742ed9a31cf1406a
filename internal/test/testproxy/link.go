package testproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/bedsql/bed/internal/jitter"
)

// link is one client's connection and its connection to the server.
type link struct {
	proxy      *Proxy
	client     net.Conn
	server     net.Conn
	protocol   framer
	statements statements
	erases     bool        // its open transaction has erased receipts
	swallow    atomic.Bool // the server's answers are no longer forwarded
	instead    atomic.Pointer[substitute]
	serverDone chan struct{}   // closed when the server has said its last
	ctx        context.Context // ends when the link is cut
	end        context.CancelFunc
}

// substitute replaces the server's next answer.
type substitute struct {
	answer []byte
	hit    func()
}

func (l *link) run() {
	var wg sync.WaitGroup
	wg.Go(l.clientToServer)
	wg.Go(l.serverToClient)
	wg.Wait()
	_ = l.client.Close()
	_ = l.server.Close()
}

// cut resets both sides.
func (l *link) cut() {
	l.end()
	reset(l.client)
	reset(l.server)
}

func (l *link) clientToServer() {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		for _, message := range l.protocol.push(buf[:n]) {
			if !l.forward(message) {
				return
			}
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			closeWrite(l.server)
		} else {
			l.cut()
		}
		return
	}
}

// forward applies the matching fault to a message, if any, and reports whether the link continues.
func (l *link) forward(message []byte) bool {
	toServer, _ := l.proxy.delays()
	statement := l.statements.run(l.protocol.of(), message)
	fault := l.proxy.match(message, statement, l.endsErasing(message, statement))
	if toServer > 0 && !jitter.Sleep(l.ctx, toServer) {
		return false
	}
	if fault == nil {
		return l.send(message)
	}
	return fault.strike(l, message, func() { close(fault.struck) })
}

// endsErasing reports the COMMIT of a transaction that has erased receipts.
func (l *link) endsErasing(message []byte, statement string) bool {
	if erases := Text("DELETE FROM bed_receipt"); erases(message) || erases([]byte(statement)) {
		l.erases = true
		return false
	}
	if !Commit(message) && !Text("ROLLBACK")(message) {
		return false
	}
	erased := l.erases
	l.erases = false
	return erased
}

func (l *link) send(message []byte) bool {
	if _, err := l.server.Write(message); err != nil {
		l.cut()
		return false
	}
	return true
}

func (l *link) serverToClient() {
	defer close(l.serverDone)
	buf := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buf)
		if n > 0 {
			l.protocol.serverSaid(buf[:n])
			l.statements.answered(buf[:n])
			_, toClient := l.proxy.delays()
			if toClient > 0 && !jitter.Sleep(l.ctx, toClient) {
				return
			}
			if !l.swallow.Load() {
				said := buf[:n]
				instead := l.instead.Swap(nil)
				if instead != nil {
					said = instead.answer
				}
				_, err := l.client.Write(said)
				if instead != nil {
					instead.hit()
				}
				if err != nil {
					l.cut()
					return
				}
			}
		}
		if err == nil {
			continue
		}
		switch {
		case l.swallow.Load():
			// The swallowing side also ends the connection.
		case errors.Is(err, io.EOF):
			closeWrite(l.client)
		default:
			l.cut()
		}
		return
	}
}

// closeWrite announces the end of the data to the peer.
func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
