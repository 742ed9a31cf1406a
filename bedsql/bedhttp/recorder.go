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

// recorder is the http.ResponseWriter of a handler under a key. It is not an http.Flusher, so a
// handler that asks for a Flusher learns of it.
type recorder struct {
	limit int
	under http.ResponseWriter

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

// writeHeader is for WriteHeader. Informational responses (1xx) are not sent.
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
	if r.status == 0 {
		r.writeHeader(http.StatusOK)
	}
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

// Hijack implements http.Hijacker.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, ErrBuffered }

// The deadlines and full duplex belong to the connection, for http.ResponseController. There is no
// Unwrap, because the receipt would miss anything written to the writer under r.

// SetReadDeadline is for http.ResponseController.
func (r *recorder) SetReadDeadline(at time.Time) error {
	return http.NewResponseController(r.under).SetReadDeadline(at)
}

// SetWriteDeadline is for http.ResponseController.
func (r *recorder) SetWriteDeadline(at time.Time) error {
	return http.NewResponseController(r.under).SetWriteDeadline(at)
}

// EnableFullDuplex is for http.ResponseController.
func (r *recorder) EnableFullDuplex() error {
	return http.NewResponseController(r.under).EnableFullDuplex()
}

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
