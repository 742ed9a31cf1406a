package bedsql

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/entry"
)

// IdempotencyKey is a caller's own key for a request: see WithIdempotencyKey.
// It is safe for concurrent use.
type IdempotencyKey struct {
	of   *keyedRequest
	part string // of the request (WithKeyPart); empty: the request itself
}

// keyedRequest is the shared state of a request's parts.
type keyedRequest struct {
	key string

	replayed atomic.Bool
	mu       sync.Mutex
	own      string                 // SetFingerprint's; empty: none
	writes   map[string]*keyedWrite // by the id of the receipt
}

// WithIdempotencyKey returns a context under which a write is applied once, however often
// it is sent under the key to the same data source. A resend gets the first answer (rows
// affected, last insert id, RETURNING rows). A write is a DML, a local transaction by
// BeginTx, or the part of a staged soft transaction. Make a new context for each resend.
//
// A key names one write on each data source. A second one under the same context is
// ErrKeyUnusable before anything runs; WithKeyPart gives it a key. A write that was
// refused, rolled back or not logged can be tried again. One that is pending, parked or of
// unknown outcome keeps the key.
//
// The same key with another request is ErrKeyReused. Without SetFingerprint, the same
// request has the same SQL, comments aside (hints count), and the same parameter values.
// Go types, time zones and pgx's mode of sending do not matter. The key is kept, hashed, for Config.KeyRetention, together with the answer.
// It implies ExactlyOnce. A second caller waits while the first is being applied. A write
// that cannot carry a receipt (on a pinned connection, in a transaction begun without the
// key or by a statement, several in one text) is ErrKeyUnusable.
//
// If one part of a staged soft transaction waits for longer than the retention, the key of
// the delivered parts is forgotten: a resend applies these once more.
//
// A resent local transaction does not run its writes. A statement that failed returns the
// text of its error; queries see the present rows. Commit confirms that all of it was the
// same request. Read-only transactions do not use the key.
func WithIdempotencyKey(ctx context.Context, key string) (context.Context, *IdempotencyKey) {
	k := &IdempotencyKey{of: &keyedRequest{key: key, writes: map[string]*keyedWrite{}}}
	return k.in(ctx), k
}

// WithKeyPart returns a context under the key of another part of the same request. A
// request that writes twice to one data source names the second write:
//
//	_, err = shop.ExecContext(ctx, "INSERT INTO orders VALUES (?)", id)
//	_, err = shop.ExecContext(bedsql.WithKeyPart(ctx, "stock"), "UPDATE stock SET n = n - 1")
//
// Use the same name each time the request is sent. SetFingerprint and Replayed cover all
// parts. A part of a part has its own key. A context without a key is returned as it is.
func WithKeyPart(ctx context.Context, part string) context.Context {
	k := scopeOf(ctx).key
	if k == nil {
		return ctx
	}
	return (&IdempotencyKey{of: k.of, part: fmt.Sprint(k.part, len(part), ":", part)}).in(ctx)
}

func (k *IdempotencyKey) in(ctx context.Context) context.Context {
	s := scopeOf(ctx)
	s.key = k
	return s.in(ctx)
}

// SetFingerprint identifies the request in place of its SQL and parameters. Use it for
// requests that differ in each resend (gorm's created_at), before the first write.
func (k *IdempotencyKey) SetFingerprint(fingerprint string) {
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	k.of.own = "own " + fingerprint
}

// Replayed reports whether anything under this key was answered from an earlier request
// instead of being applied: a write, a local transaction once it is committed, a part.
func (k *IdempotencyKey) Replayed() bool { return k.of.replayed.Load() }

// is reports whether both are the key of the same part of the same request.
func (k *IdempotencyKey) is(other *IdempotencyKey) bool { return other != nil && *k == *other }

// keyedWrite is the one write under a key on a data source.
type keyedWrite struct {
	key     *IdempotencyKey
	c       *connector
	receipt string
	in      atomic.Pointer[localTx] // whose ROLLBACK gives the key back; nil: none
	to      deliverer               // nil for a write that is not Conn.submit's
	sent    bool                    // to it
}

// take begins the key's write on a data source, or refuses a second one.
func (k *IdempotencyKey) take(c *connector) (*keyedWrite, error) {
	if k.of.key == "" {
		return nil, unusable("it is empty")
	}
	// Collations fold case and pad blanks, so the key is hashed. Earlier versions numbered the writes from 0.
	text := append(binary.BigEndian.AppendUint64(apart(k.of.key, c.target.DataSource), 0), k.part...)
	w := &keyedWrite{key: k, c: c, receipt: fmt.Sprintf("key-%x", sha256.Sum256(text))}
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	if first := k.of.writes[w.receipt]; first != nil && !first.in.Load().gone() {
		return nil, unusable("it names one write on each data source, and " + c.target.DataSource +
			` has its write already; give this one a key by bedsql.WithKeyPart(ctx, "stock"), or send the request again under a new context`)
	}
	k.of.writes[w.receipt] = w
	return w, nil
}

// settle gives the key back after an err that rules out the write's application, now or later. w
// may be nil.
func (w *keyedWrite) settle(err error) {
	if err != nil && !undecided(err) && !isParked(err) {
		w.back()
	}
}

// back gives the key back. w may be nil.
func (w *keyedWrite) back() {
	if w == nil {
		return
	}
	w.key.of.mu.Lock()
	defer w.key.of.mu.Unlock()
	if w.key.of.writes[w.receipt] == w {
		delete(w.key.of.writes, w.receipt)
	}
}

// mark puts a unit under the key. w may be nil.
func (w *keyedWrite) mark(u *entry.Unit) {
	if w != nil {
		u.Receipt, u.Fingerprint = w.receipt, w.key.request(u.Statements...).Fingerprint()
	}
}

// submit is Conn.submit under the key.
func (k *IdempotencyKey) submit(ctx context.Context, c *Conn, under scope, s statement, to deliverer) (attempt.Reply, error) {
	w, err := k.take(c.c)
	if err != nil {
		return attempt.Reply{}, err
	}
	w.to = to
	r, err := c.submit(ctx, under, s, w)
	if err != nil && !w.sent {
		w.back()
	}
	return r, err
}

// Deliver implements deliverer.
func (w *keyedWrite) Deliver(ctx context.Context, d *besteffort.InFlight) error {
	w.sent = true
	w.mark(d.Unit)
	err := w.to.Deliver(ctx, d)
	w.settle(err)
	if err == nil && d.Outcome.Replayed {
		w.key.of.replayed.Store(true)
	}
	return w.c.refusesReused(err)
}

// request begins a request under the key.
func (k *IdempotencyKey) request(statements ...entry.Statement) *attempt.Request {
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	r := attempt.NewRequest(k.of.key, k.of.own)
	for _, s := range statements {
		r.Add(s)
	}
	return r
}

// apart joins texts unambiguously: different lists give different results.
func apart(texts ...string) (all []byte) {
	for _, s := range texts {
		all = append(binary.BigEndian.AppendUint64(all, uint64(len(s))), s...)
	}
	return all
}

// unusable refuses a write that cannot carry the receipt of its key.
func unusable(why string) error { return fmt.Errorf("%w: %s", ErrKeyUnusable, why) }

// refusesReused returns err. If many requests reuse a key for another request, a value or a text
// probably changes with each resend, and refusesReused warns of it.
func (c *connector) refusesReused(err error) error {
	if !errors.Is(err, ErrKeyReused) {
		return err
	}
	n := c.reused.Add(1)
	if n == 10 || n == 100 || n%1000 == 0 {
		c.log.WithFields(logrus.Fields{"refused": n, "last": err.Error()}).Warn("bed: requests are refused because their idempotency keys were used for other requests: " +
			"if they are resends, give each request its key once, take out of it what changes (a time, a generated id), or say by SetFingerprint what the same request is")
	}
	return err
}
