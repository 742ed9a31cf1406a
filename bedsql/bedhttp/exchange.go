package bedhttp

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/internal/kept"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/httpkey"
	"github.com/bedsql/bed/internal/jitter"
)

// exchange is one request under a key, and its response.
type exchange struct {
	*middleware
	w    http.ResponseWriter
	r    *http.Request
	body []byte
	next http.Handler

	client, given    string // the client, and its key
	key, fingerprint string // scoped, and of the request
	flight           *flight
	stored           bool // the receipt holds the response

	scope  string
	undo   *undo   // nil for a request that undoes no other
	undoes *flight // over the key that it undoes
	over   *kept.Undo
}

// run waits for the request's turn among its duplicates, and answers it.
func (x *exchange) run() {
	wait, cancel := context.WithTimeout(x.r.Context(), x.Wait)
	defer cancel()
	for {
		f, leads := board(x.DB, x.key, x.fingerprint, x.body)
		if leads {
			x.flight = f
			defer x.land(nil) // also if the handler panics
			if x.undo != nil && !x.leadOver(wait) {
				x.answer(x.w, x.r, outstanding, nil)
				return
			}
			x.lead(wait)
			return
		}
		if f.fingerprint != x.fingerprint && f.fingerprint != undoing {
			x.answer(x.w, x.r, reused, nil)
			return
		}
		if bytes.Equal(f.body, x.body) { // Config.Fingerprint may take others for the same
			x.body = f.body
		}
		select {
		case <-f.landed:
		case <-wait.Done():
			x.answer(x.w, x.r, outstanding, nil)
			return
		}
		if f.response != nil {
			x.resend(f.response)
			return
		} // nothing was committed: it is this one's turn, or another's
	}
}

// land ends the flights of the request with the kept response: see flight.land.
func (x *exchange) land(kept *response) {
	if x.undoes != nil {
		x.undoes.land(nil)
	}
	x.flight.land(kept)
}

// resend sends a kept response again.
func (x *exchange) resend(r *response) {
	x.Counters.Replayed.Add(1)
	r.replay(x.w)
}

// keyedTx is a local transaction under the key.
type keyedTx struct {
	*sql.Tx
	ctx    context.Context // ends the transaction
	cancel context.CancelFunc
	kept   *kept.Request
}

// begin begins the transaction on a context of its own, without the client's. Only wait can
// prevent the beginning, and only cancel ends the transaction later.
func (x *exchange) begin(wait context.Context) (*keyedTx, error) { return x.beginUndo(wait, nil) }

// beginUndo is begin for a request that undoes another one, if undo is not nil.
func (x *exchange) beginUndo(wait context.Context, undo *kept.Undo) (*keyedTx, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(x.r.Context()))
	if x.Undo != nil {
		ctx = kept.Confine(ctx)
	}
	ctx, key := bedsql.WithIdempotencyKey(ctx, x.key)
	key.SetFingerprint(x.fingerprint)
	t := &keyedTx{ctx: ctx, cancel: cancel, kept: &kept.Request{Undoable: x.Undo != nil, Undo: undo}}
	stop := context.AfterFunc(wait, cancel)
	var err error
	t.Tx, err = x.DB.BeginTx(kept.In(ctx, t.kept), &sql.TxOptions{Isolation: x.Isolation})
	switch {
	case err != nil:
	case !stop():
		err = context.Cause(wait)
	case !t.kept.Begun:
		err = errNotBed
	default:
		return t, nil
	}
	if t.Tx != nil {
		t.rollback()
	}
	cancel()
	return t, err
}

// answerTimeout is how long the answer to a COMMIT or ROLLBACK is waited for.
const answerTimeout = 10 * time.Second

// end ends the transaction. Without an answer, it closes the connection.
func (t *keyedTx) end(how func() error) error {
	defer t.cancel()
	defer time.AfterFunc(answerTimeout, t.cancel).Stop()
	return how()
}

// rollback frees the key.
func (t *keyedTx) rollback() { _ = t.end(t.Rollback) }

// lead handles the request.
func (x *exchange) lead(wait context.Context) {
	if x.undo != nil {
		x.over = &kept.Undo{Key: scoped(x.Service, x.client, x.undo.key), Decide: x.decide}
	}
	t, err := x.beginUndo(wait, x.over)
	if err != nil {
		x.answer(x.w, x.r, whyNotBegun(err, t.kept), err)
		return
	}
	if t.kept.Answered {
		t.rollback()
		x.replay(t)
		return
	}
	if x.KeysPerHour > 0 && !x.hours.take(x.client, x.KeysPerHour, time.Now()) {
		t.rollback()
		x.answer(x.w, x.r, exhausted, nil)
		return
	}
	if x.decided(t) {
		return
	}
	returned := false
	defer func() {
		if !returned { // it panics
			t.rollback()
		}
	}()
	late := time.AfterFunc(x.HandlerTimeout, t.cancel)
	rec := &recorder{limit: x.MaxResponse, under: x.w, header: x.w.Header().Clone()}
	rec.header.Del(httpkey.Scope)
	rec.header.Del(encoding) // a compressor's in front, which compresses what is sent here
	asked := &request{m: x.middleware, tx: t.Tx, key: x.given}
	q := x.request(t, asked)
	defer handOver(q, x.r)
	x.next.ServeHTTP(rec, q)
	returned = true
	inTime := late.Stop()
	status, header, body, err := rec.end()
	if err == nil {
		body = finish(x.r.Method, status, header, body)
	}
	switch {
	case err != nil:
		t.rollback()
		x.answer(x.w, x.r, broken, err)
	case !inTime:
		t.rollback()
		x.answer(x.w, x.r, retry, errHandlerLate)
	case !x.keeps(status, asked.used.Load()):
		t.rollback()
		x.land(nil) // the client may be slow to read it
		x.send(status, header, body)
	default:
		if x.undo != nil {
			header.Set(httpkey.Undone, httpkey.Done)
		}
		x.commit(t, keep(status, header, x.headers, body), header)
	}
}

var errHandlerLate = errors.New("bedhttp: the handler ran longer than Config.HandlerTimeout and was rolled back")

// keeps reports whether a response is kept with its rows; used: there may be some.
func (x *exchange) keeps(status int, used bool) bool {
	switch {
	case status < 300:
		return true // the client is told that it is done
	case x.undo != nil:
		return false // it can be tried again
	case x.Keep != nil:
		return x.Keep(status)
	case status < 400:
		return used // a router that redirects has done nothing
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusRequestTimeout,
		status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return false
	default:
		return status < 500
	}
}

// request returns the handler's request: it has the body again, and a context that the client does
// not end.
func (x *exchange) request(t *keyedTx, asked *request) *http.Request {
	r := x.r.WithContext(asked.in(kept.Within(t.ctx, t.Tx)))
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body))
	return r
}

// whyNotBegun is the answer if nothing was begun, and so nothing applied.
func whyNotBegun(err error, k *kept.Request) problem {
	if k.Outstanding {
		return outstanding
	}
	return notBegun(err)
}

func notBegun(err error) problem {
	switch {
	case errors.Is(err, bedsql.ErrKeyReused):
		return reused
	case errors.Is(err, bedsql.ErrRowsUnknown):
		return unreadable
	case errors.Is(err, dialect.ErrVoided):
		return undone
	case errors.Is(err, errNotBed), bedsql.OutcomeOf(err) == bedsql.OutcomeRefused:
		return broken
	default:
		return retry
	}
}

// replay sends the answer to an earlier request.
func (x *exchange) replay(t *keyedTx) {
	r, err := decode(t.kept.Stored)
	if err != nil {
		x.answer(x.w, x.r, unreadable, err)
		return
	}
	x.land(r)
	x.resend(r)
}

// send sends the handler's response.
func (x *exchange) send(status int, header http.Header, body []byte) {
	h := x.w.Header()
	maps.DeleteFunc(h, func(name string, _ []string) bool { return name != encoding })
	maps.Copy(h, header)
	h.Set(httpkey.Scope, x.scope)
	if x.stored {
		h.Set(httpkey.Kept, httpkey.Yes)
	}
	send(x.w, status, body)
}

// commit commits the rows with the response, and sends it.
func (x *exchange) commit(t *keyedTx, r *response, header http.Header) {
	if r.size() > x.MaxResponse {
		t.rollback()
		x.answer(x.w, x.r, broken, ErrTooLarge)
		return
	}
	t.kept.Response = r.encode()
	err := t.end(t.Commit)
	switch p := whyNotCommitted(err); {
	case err == nil:
		x.committed(t, r)
		x.send(r.Status, header, r.Body)
	case r.Status >= 400 && (t.kept.Ended || errors.Is(err, sql.ErrTxDone)):
		x.refuse(r, header)
	case p == unknown:
		x.find(t, r, header, err)
	default:
		x.answer(x.w, x.r, p, err)
	}
}

// whyNotCommitted is the answer to an error of COMMIT.
func whyNotCommitted(err error) problem {
	switch bedsql.OutcomeOf(err) {
	case bedsql.OutcomeUnknown, bedsql.OutcomeAccepted:
		return unknown
	case bedsql.OutcomeRefused:
		if dialect.MistakeOf(err) {
			return broken
		}
		return refused
	default:
		return retry
	}
}

// committed lets the duplicates go on, and ends the soft transactions whose entries were
// committed. The job delivers the parts that are not delivered within Wait.
func (x *exchange) committed(t *keyedTx, r *response) {
	x.stored = true
	x.land(r)
	if x.undo != nil {
		x.Counters.Undone.Add(1)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), x.Wait)
	defer cancel()
	for _, end := range slices.Backward(t.kept.Ends) {
		_ = end(ctx) // bedsql has logged it
	}
}

// find looks the key up to learn the outcome of an unanswered COMMIT, until Wait is over.
func (x *exchange) find(t *keyedTx, r *response, header http.Header, cause error) {
	wait, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), x.Wait)
	defer cancel()
	again, err := x.begin(wait)
	for pause := jitter.BackOff(10*time.Millisecond, time.Second); err != nil && whyNotBegun(err, again.kept).retry && jitter.Sleep(wait, pause.NextBackOff()); {
		again, err = x.begin(wait)
	}
	switch {
	case errors.Is(err, dialect.ErrVoided):
		x.answer(x.w, x.r, undone, errors.Join(cause, err))
		return
	case err != nil:
		x.answer(x.w, x.r, unknown, errors.Join(cause, err))
		return
	case again.kept.Answered && !r.is(again.kept.Stored): // it was rolled back, and a duplicate in another process handled since
		again.rollback()
		x.replay(again)
		return
	case again.kept.Answered:
		again.rollback()
		x.committed(t, r)
		x.send(r.Status, header, r.Body)
		return
	}
	// The key is free, so the COMMIT never was, and never will be.
	again.rollback()
	x.answer(x.w, x.r, retry, cause)
}

// encoding is a header that a compressor in front of the middleware may have set.
const encoding = "Content-Encoding"

// refuse keeps and sends a handler's 4xx after the database has ended the transaction, for example
// by an error. There are no rows to share its fate. refuse sends it only after keeping it, because
// a duplicate in another process may be handled instead.
func (x *exchange) refuse(r *response, header http.Header) {
	wait, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), x.Wait)
	defer cancel()
	t, err := x.begin(wait)
	if err != nil {
		x.answer(x.w, x.r, whyNotBegun(err, t.kept), err)
		return
	}
	if t.kept.Answered { // a duplicate in another process was faster
		t.rollback()
		x.replay(t)
		return
	}
	t.kept.Response = r.encode()
	if err := t.end(t.Commit); err != nil {
		x.answer(x.w, x.r, whyNotCommitted(err), err)
		return
	}
	x.stored = true
	x.land(r)
	x.send(r.Status, header, r.Body)
}
