package bedhttp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

var (
	// ErrBuffered is the error of Flush (by http.ResponseController) and Hijack under a key. The
	// response is sent after the commit of the rows, and not before. errors.Is finds
	// http.ErrNotSupported in it.
	ErrBuffered = fmt.Errorf("bedhttp: a response under an idempotency key is sent when it is committed, it cannot be streamed or taken over: "+
		"serve it without a key: %w", http.ErrNotSupported)
	// ErrTooLarge is the error of Write for a response of more than Config.MaxResponse bytes. The
	// request is rolled back and answered 500.
	ErrTooLarge = errors.New("bedhttp: the response is larger than Config.MaxResponse, it cannot be kept with the idempotency key")

	errReturned = errors.New("bedhttp: the handler has returned")
)

// connection has what http.ResponseController does with the connection itself. There is no Unwrap, because
// the receipt would miss anything written to the writer under a recorder.
type connection interface {
	SetReadDeadline(at time.Time) error
	SetWriteDeadline(at time.Time) error
	EnableFullDuplex() error
}

// recorder is the http.ResponseWriter of a handler under a key. It is not an http.Flusher, so a
// handler that asks for a Flusher learns of it.
type recorder struct {
	connection
	limit int

	mu       sync.Mutex
	header   http.Header // the handler's
	sent     http.Header // as it was at WriteHeader
	status   int
	body     bytes.Buffer
	err      error // why the response cannot be kept
	returned bool
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeader(status)
}

// writeHeader is for WriteHeader; the first call counts. Informational responses (1xx) are not sent.
func (r *recorder) writeHeader(status int) {
	switch {
	case r.status != 0 || r.returned:
	case status < 100 || status > 999:
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http does
	case status == http.StatusSwitchingProtocols:
		r.err = ErrBuffered
	case status >= 200:
		r.status, r.sent = status, r.header.Clone()
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeader(http.StatusOK)
	switch {
	case r.returned:
		return 0, errReturned
	case !hasBody(r.status):
		return 0, http.ErrBodyNotAllowed
	case r.body.Len()+len(p) > r.limit:
		r.err = ErrTooLarge
		return 0, r.err
	}
	return r.body.Write(p)
}

// FlushError and Hijack return ErrBuffered.
func (r *recorder) FlushError() error { return ErrBuffered }

func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, ErrBuffered }

// end returns the response after the handler has returned. Later writes fail.
func (r *recorder) end() (status int, header http.Header, body []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.writeHeader(http.StatusOK)
	}
	r.returned = true
	return r.status, r.sent, r.body.Bytes(), r.err
}
