// Package keyed puts writes under idempotency keys: a request is applied once on each data source,
// and sent again it gets the first answer.
package keyed

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
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener"
)

// ErrUnusable is bedsql.ErrKeyUnusable.
var ErrUnusable = errors.New("bed: the idempotency key cannot be used for this write")

// Key is the key of a part of a request. It is safe for concurrent use.
type Key struct {
	of   *parts
	part string // empty: the request itself
}

// parts is the shared state of a request's parts.
type parts struct {
	key string

	replayed atomic.Bool
	mu       sync.Mutex
	own      string            // SetFingerprint's; empty: none
	writes   map[string]*Write // by the id of the receipt
}

// New returns the key of a request.
func New(key string) *Key { return &Key{of: &parts{key: key, writes: map[string]*Write{}}} }

// Part returns the key of a part of what k is the key of.
func (k *Key) Part(name string) *Key {
	return &Key{of: k.of, part: fmt.Sprint(k.part, len(name), ":", name)}
}

// SetFingerprint identifies the request in place of its SQL and parameters.
func (k *Key) SetFingerprint(fingerprint string) {
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	k.of.own = "own " + fingerprint
}

// Replayed reports whether an earlier request answered anything under the key.
func (k *Key) Replayed() bool { return k.of.replayed.Load() }

// Covers reports whether a write under other belongs to what was begun under k: it is under no key of
// its own, or under the same part of the same request. Both may be nil.
func (k *Key) Covers(other *Key) bool { return other == nil || k != nil && *k == *other }

// Write is the one write under a key on a data source. Delivered by itself, it decorates To.
type Write struct {
	To besteffort.Delivery
	// Sent means that the unit went to To.
	Sent bool
	// Peer means that the data source is a service that keeps the receipt itself.
	Peer bool

	key     *Key
	src     *Source
	receipt string
	gone    func() bool // Within's; may be nil
}

// Take begins the key's write on a data source, or refuses a second one.
func (k *Key) Take(src *Source) (*Write, error) {
	if k.of.key == "" {
		return nil, fmt.Errorf("%w: it is empty", ErrUnusable)
	}
	w := &Write{key: k, src: src, receipt: src.receipt(k.of.key, k.part)}
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	if first := k.of.writes[w.receipt]; first != nil && (first.gone == nil || !first.gone()) {
		return nil, fmt.Errorf("%w: it names one write on each data source, and %s has its write already; "+
			`give this one a key by bedsql.WithKeyPart(ctx, "stock"), or send the request again under a new context`, ErrUnusable, src.Name)
	}
	k.of.writes[w.receipt] = w
	return w, nil
}

// receipt returns the id of the receipt of a part of a request. Collations fold case and pad blanks,
// so the key is hashed. Earlier versions numbered the writes from 0.
func (s *Source) receipt(key, part string) string {
	text := append(binary.BigEndian.AppendUint64(entry.Apart(key, s.Name), 0), part...)
	return fmt.Sprintf("key-%x", sha256.Sum256(text))
}

// request begins a request under the key.
func (k *Key) request(statements ...entry.Statement) *attempt.Request {
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	r := attempt.NewRequest(k.of.key, k.of.own)
	for _, s := range statements {
		r.Add(s)
	}
	return r
}

// Within gives the key back once gone reports that the local transaction with the write was rolled
// back. w may be nil.
func (w *Write) Within(gone func() bool) {
	if w != nil {
		w.key.of.mu.Lock()
		defer w.key.of.mu.Unlock()
		w.gone = gone
	}
}

// Settle ends the write with its last outcome and the caller's error. It gives the key back if err
// rules out the write's application, now or later. w may be nil.
func (w *Write) Settle(out *attempt.Outcome, err error) {
	if w == nil {
		return
	}
	peer, _ := out.Result.(interface{ Replayed() bool })
	if out.Replayed || peer != nil && peer.Replayed() {
		w.key.of.replayed.Store(true)
	}
	var refused *listener.RefusedError
	parked := errors.As(err, &refused) && !refused.Removed
	if err != nil && !parked && !errors.Is(err, listener.ErrPending) && !errors.Is(err, listener.ErrUnknownOutcome) {
		w.Back()
	}
}

// Back gives the key back. w may be nil.
func (w *Write) Back() {
	if w == nil {
		return
	}
	w.key.of.mu.Lock()
	defer w.key.of.mu.Unlock()
	if w.key.of.writes[w.receipt] == w {
		delete(w.key.of.writes, w.receipt)
	}
}

// Receipt is the id of the key's receipt. It names the key, its part and the data source.
func (w *Write) Receipt() string { return w.receipt }

// Mark puts a unit under the key. w may be nil.
func (w *Write) Mark(u *entry.Unit) {
	if w != nil && !w.Peer {
		u.Receipt, u.Fingerprint = w.receipt, w.key.request(u.Statements...).Fingerprint()
	}
}

// Deliver is [besteffort.Deliverer.Deliver] for a unit under the key.
func (w *Write) Deliver(ctx context.Context, d *besteffort.InFlight) error {
	w.Sent = true
	w.Mark(d.Unit)
	err := w.To.Deliver(ctx, d)
	w.Settle(&d.Outcome, err)
	return w.src.Refused(err)
}

// Source is a data source for writes under keys.
type Source struct {
	Name   string
	Flavor sqltext.Flavor
	Log    logrus.FieldLogger
	// reused counts the requests refused because of their keys.
	reused atomic.Int64
}

// Refused returns err. If many requests reuse a key for another request, a value or a text
// probably changes with each resend, and Refused warns of it.
func (s *Source) Refused(err error) error {
	if !errors.Is(err, dialect.ErrKeyReused) {
		return err
	}
	if n := s.reused.Add(1); n == 10 || n == 100 || n%1000 == 0 {
		s.Log.WithFields(logrus.Fields{"refused": n, "last": err.Error()}).Warn("bed: requests are refused because their idempotency keys were used for other requests: " +
			"if they are resends, give each request its key once, take out of it what changes (a time, a generated id), or say by SetFingerprint what the same request is")
	}
	return err
}
