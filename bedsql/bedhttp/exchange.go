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
	"github.com/bedsql/bed/internal/keyed"
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

	scope  string
	undo   *undo   // nil for a request that undoes no other
	undoes *flight // over the key that it undoes
}

// run waits for the request's turn among its duplicates, and handles it. It returns the problem to answer
// with, and its cause, unless it has sent an answer.
func (x *exchange) run() (*problem, error) {
	wait, cancel := context.WithTimeout(x.r.Context(), x.Wait)
	defer cancel()
	for {
		f, leads := board(x.DB, x.key, x.fingerprint, x.body)
		if leads {
			x.flight = f
			defer x.land(nil) // also if the handler panics
			if x.undo != nil && !x.leadOver(wait) {
				return &outstanding, nil
			}
			return x.lead(wait)
		}
		if f.fingerprint != x.fingerprint && f.fingerprint != undoing {
			return &reused, nil
		}
		if bytes.Equal(f.body, x.body) { // Config.Fingerprint may take others for the same
			x.body = f.body
		}
		select {
		case <-f.landed:
		case <-wait.Done():
			return &outstanding, nil
		}
		if f.response != nil {
			x.resend(f.response)
			return nil, nil
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

func (x *exchange) resend(r *response) {
	x.Counters.Replayed.Add(1)
	r.replay(x.w)
}

// keyedTx is a local transaction under the key.
type keyedTx struct {
	*sql.Tx
	ctx    context.Context // ends the transaction
	cancel context.CancelFunc
	kept   *keyed.Request
}

// begin begins the transaction on a context of its own, without the client's. Only wait can
// prevent the beginning, and only cancel ends the transaction later. It is over if the key is Answered.
func (x *exchange) begin(wait context.Context, undo *keyed.Undo) (*keyedTx, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(x.r.Context()))
	if x.Undo != nil {
		ctx = kept.Confine(ctx)
	}
	ctx, key := bedsql.WithIdempotencyKey(ctx, x.key)
	key.SetFingerprint(x.fingerprint)
	t := &keyedTx{ctx: ctx, cancel: cancel, kept: &keyed.Request{Undoable: x.Undo != nil, Undo: undo}}
	stop := context.AfterFunc(wait, cancel)
	var err error
	t.Tx, err = x.DB.BeginTx(kept.In(ctx, t.kept), &sql.TxOptions{Isolation: x.Isolation})
	switch {
	case err != nil:
	case !stop():
		err = context.Cause(wait)
	case !t.kept.Begun:
		err = errNotBed
	case !t.kept.Answered:
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

// rollback frees the key, unless the transaction has ended.
func (t *keyedTx) rollback() { _ = t.end(t.Rollback) }

func (x *exchange) lead(wait context.Context) (*problem, error) {
	var over *keyed.Undo
	if x.undo != nil {
		over = &x.undo.Undo
		over.Decide = x.decide
	}
	t, err := x.begin(wait, over)
	switch {
	case err != nil:
		return notBegun(err, t.kept.Outstanding), err
	case t.kept.Answered:
		return x.replay(t)
	}
	defer t.rollback() // also if the handler panics
	switch {
	case x.KeysPerHour > 0 && !x.hours.take(x.client, x.KeysPerHour, time.Now()):
		return &exhausted, nil
	case x.undo != nil && x.undo.undone != httpkey.Done:
		return x.decided(t)
	}
	late := time.AfterFunc(x.HandlerTimeout, t.cancel)
	rec := &recorder{limit: x.MaxResponse, connection: http.NewResponseController(x.w), header: x.w.Header().Clone()}
	rec.header.Del(httpkey.Scope)
	rec.header.Del(encoding) // a compressor's in front, which compresses what is sent here
	asked := &request{m: x.middleware, tx: t.Tx, key: x.given}
	q := x.r.WithContext(asked.in(kept.Within(t.ctx, t.Tx)))
	q.Body, q.ContentLength = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body))
	defer handOver(q, x.r)
	x.next.ServeHTTP(rec, q)
	inTime := late.Stop()
	status, header, body, err := rec.end()
	if err == nil {
		body = finish(x.r.Method, status, header, body)
	}
	switch {
	case err != nil:
		return &broken, err
	case !inTime:
		return &retry, errHandlerLate
	case !x.keeps(status, asked.used.Load()):
		t.rollback()
		x.land(nil) // the client may be slow to read it
		x.send(status, header, body)
		return nil, nil
	case x.undo != nil:
		header.Set(httpkey.Undone, httpkey.Done)
	}
	return x.commit(t, keep(status, header, x.headers, body), header)
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
	}
	passing := []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests}
	return status < 500 && !slices.Contains(passing, status)
}

// notBegun is the answer if nothing was begun, and so nothing applied.
func notBegun(err error, busy bool) *problem {
	switch {
	case busy:
		return &outstanding
	case errors.Is(err, bedsql.ErrKeyReused):
		return &reused
	case errors.Is(err, bedsql.ErrRowsUnknown):
		return &unreadable
	case errors.Is(err, dialect.ErrVoided):
		return &undone
	case errors.Is(err, errNotBed), bedsql.OutcomeOf(err) == bedsql.OutcomeRefused:
		return &broken
	default:
		return &retry
	}
}

// replay sends the answer to an earlier request.
func (x *exchange) replay(t *keyedTx) (*problem, error) {
	r, err := decode(t.kept.Stored)
	if err != nil {
		return &unreadable, err
	}
	x.land(r)
	x.resend(r)
	return nil, nil
}

// send sends the handler's response.
func (x *exchange) send(status int, header http.Header, body []byte) {
	h := x.w.Header()
	maps.DeleteFunc(h, func(name string, _ []string) bool { return name != encoding })
	maps.Copy(h, header)
	h.Set(httpkey.Scope, x.scope)
	send(x.w, status, body)
}

// commit commits the rows with the response, and sends it.
func (x *exchange) commit(t *keyedTx, r *response, header http.Header) (*problem, error) {
	if r.size() > x.MaxResponse {
		return &broken, ErrTooLarge
	}
	t.kept.Response = r.encode()
	err := t.end(t.Commit)
	switch p := whyNotCommitted(err); {
	case err == nil:
		x.committed(t, r, header)
		return nil, nil
	case r.Status >= 400 && (t.kept.Ended || errors.Is(err, sql.ErrTxDone)):
		return x.refuse(r, header)
	case p == &unknown:
		return x.find(t, r, header, err)
	default:
		return p, err
	}
}

// whyNotCommitted is the answer to an error of COMMIT.
func whyNotCommitted(err error) *problem {
	switch bedsql.OutcomeOf(err) {
	case bedsql.OutcomeUnknown, bedsql.OutcomeAccepted:
		return &unknown
	case bedsql.OutcomeRefused:
		if dialect.MistakeOf(err) {
			return &broken
		}
		return &refused
	default:
		return &retry
	}
}

// committed lets the duplicates go on, ends the soft transactions whose entries were committed, and
// sends the response. The job delivers the parts that are not delivered within Wait.
func (x *exchange) committed(t *keyedTx, r *response, header http.Header) {
	x.land(r)
	if x.undo != nil {
		x.Counters.Undone.Add(1)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), x.Wait)
	defer cancel()
	for _, end := range slices.Backward(t.kept.Ends) {
		_ = end(ctx) // bedsql has logged it
	}
	header.Set(httpkey.Kept, httpkey.Yes)
	x.send(r.Status, header, r.Body)
}

// find looks the key up to learn the outcome of an unanswered COMMIT, until Wait is over.
func (x *exchange) find(t *keyedTx, r *response, header http.Header, cause error) (*problem, error) {
	wait, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), x.Wait)
	defer cancel()
	again, err := x.begin(wait, nil)
	for pause := jitter.BackOff(10*time.Millisecond, time.Second); err != nil && notBegun(err, again.kept.Outstanding).retry && jitter.Sleep(wait, pause.NextBackOff()); {
		again, err = x.begin(wait, nil)
	}
	switch {
	case errors.Is(err, dialect.ErrVoided):
		return &undone, errors.Join(cause, err)
	case err != nil:
		return &unknown, errors.Join(cause, err)
	case again.kept.Answered && !r.is(again.kept.Stored): // it was rolled back, and a duplicate in another process handled since
		return x.replay(again)
	case again.kept.Answered:
		x.committed(t, r, header)
		return nil, nil
	}
	// The key is free, so the COMMIT never was, and never will be.
	again.rollback()
	return &retry, cause
}

// encoding is a header that a compressor in front of the middleware may have set.
const encoding = "Content-Encoding"

// refuse keeps and sends a handler's 4xx after the database has ended the transaction, for example
// by an error. There are no rows to share its fate. refuse sends it only after keeping it, because
// a duplicate in another process may be handled instead.
func (x *exchange) refuse(r *response, header http.Header) (*problem, error) {
	wait, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), x.Wait)
	defer cancel()
	t, err := x.begin(wait, nil)
	switch {
	case err != nil:
		return notBegun(err, t.kept.Outstanding), err
	case t.kept.Answered: // a duplicate in another process was faster
		return x.replay(t)
	}
	t.kept.Response = r.encode()
	if err := t.end(t.Commit); err != nil {
		return whyNotCommitted(err), err
	}
	x.committed(t, r, header)
	return nil, nil
}
