package bedsql

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/bedsql/internal/kept"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// IdempotencyKey is a caller's own key for a request: see WithIdempotencyKey.
// It is safe for concurrent use, but the writes under it must come in the same
// order each time the request is sent: they are distinguished by that order.
type IdempotencyKey struct {
	key string

	mu       sync.Mutex
	own      string // SetFingerprint's; empty: none
	places   map[string][]*place
	replayed bool
	// answered: see Answered.
	answered bool
}

// WithIdempotencyKey returns a context under which the same write, sent twice
// under the same key to the same data source, is applied once: the second gets
// the first one's answer (rows affected, last insert id, RETURNING rows). A
// write is a DML, a local transaction by BeginTx, or a staged soft transaction;
// several under one key are distinguished by their order on each data source, so
// make a fresh context of the same key each time the request is sent. One
// that failed finally, or was rolled back, has no place in that order, unless
// it is parked: trying it again under the same context is the same write.
//
// The same key with another request is ErrKeyReused. A request is the same if it asks the
// database the same, unless SetFingerprint says otherwise: the SQL without comments (hints
// count), and parameters of the same value, whatever their Go types, time zones or pgx's
// mode of sending them. The
// key is kept, hashed, for Config.KeyRetention, together with the answer. It
// implies ExactlyOnce. A second caller that comes while the first is still
// being applied waits for it. A request that was refused or rolled back leaves
// nothing behind: it can be sent again under the same key. What cannot carry a
// receipt (a write on a pinned connection, in a transaction begun without the
// key or by a statement, several in one text) is refused with ErrKeyUnusable.
//
// In a staged soft transaction each data source keeps the key for itself. While
// one part waits for longer than the retention, the key of the parts that were
// delivered is forgotten: the same request, sent again, applies these once more.
//
// In a local transaction that is answered again, the writes do not run again, a
// statement that failed is answered with the text of its error, and a query
// sees what is there now; Commit is what says that all of it was the same
// request. Read-only transactions do not use the key.
func WithIdempotencyKey(ctx context.Context, key string) (context.Context, *IdempotencyKey) {
	k := &IdempotencyKey{key: key, places: map[string][]*place{}}
	s := scopeOf(ctx)
	s.key = k
	return s.in(ctx), k
}

// SetFingerprint says what the same request means, in place of what it asks the
// database: for requests that differ each time they are sent (gorm's
// created_at). Call it before the first write under the key.
func (k *IdempotencyKey) SetFingerprint(fingerprint string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.own = "own " + fingerprint
}

// Replayed reports whether a write under this key was answered with the answer
// of an earlier one instead of being applied.
func (k *IdempotencyKey) Replayed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.replayed
}

// Answered reports whether the local transaction that was begun last under this key is
// answered from the receipt of an earlier one that was committed: its writes will not
// run. It is known as soon as BeginTx has returned.
func (k *IdempotencyKey) Answered() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.answered
}

func (k *IdempotencyKey) replay() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.replayed = true
}

// place is that of a write among those under its key on a data source.
type place struct {
	key        *IdempotencyKey
	dataSource string
	// in is the local transaction that the write is rolled back with.
	in *localTx
	// gone: it was not applied and never will be.
	gone bool
}

// receipt gives the id of the next write's receipt on a data source. The key is
// hashed because collations fold case and pad blanks.
func (k *IdempotencyKey) receipt(dataSource string) (id string, at *place, err error) {
	if k.key == "" {
		return "", nil, fmt.Errorf("%w: it is empty", ErrKeyUnusable)
	}
	at = &place{key: k, dataSource: dataSource}
	k.mu.Lock()
	k.free(dataSource)
	n := len(k.places[dataSource])
	k.places[dataSource] = append(k.places[dataSource], at)
	k.mu.Unlock()
	h := sha256.New()
	hashText(h, k.key)
	hashText(h, dataSource)
	_ = binary.Write(h, binary.BigEndian, int64(n))
	return "key-" + hex.EncodeToString(h.Sum(nil)), at, nil
}

// free gives the last places back if what had them was rolled back: what is tried instead
// must have the place that it has when the request is sent again. The caller holds mu.
func (k *IdempotencyKey) free(dataSource string) {
	all := k.places[dataSource]
	for len(all) > 0 {
		if last := all[len(all)-1]; !last.gone && !last.in.gone() {
			break
		}
		all = all[:len(all)-1]
	}
	k.places[dataSource] = all
}

// back returns the place. p may be nil.
func (p *place) back() {
	if p == nil {
		return
	}
	p.key.mu.Lock()
	defer p.key.mu.Unlock()
	p.gone = true
	p.key.free(p.dataSource)
}

// within notes the local transaction that the write is rolled back with. p may be nil.
func (p *place) within(t *localTx) {
	if p == nil {
		return
	}
	p.key.mu.Lock()
	defer p.key.mu.Unlock()
	p.in = t
}

// request begins a request under the key.
func (k *IdempotencyKey) request(statements ...txlog.Statement) *attempt.Request {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := attempt.NewRequest(k.key, k.own)
	for _, s := range statements {
		r.Add(s)
	}
	return r
}

// hashText adds a text to a hash so that no two rows of texts are the same.
func hashText(h hash.Hash, s string) {
	_ = binary.Write(h, binary.BigEndian, int64(len(s)))
	_, _ = h.Write([]byte(s))
}

// mark puts a unit under the key.
func (k *IdempotencyKey) mark(u *txlog.Unit) (*place, error) {
	id, at, err := k.receipt(u.DataSource)
	if err != nil {
		return nil, err
	}
	u.Receipt, u.Fingerprint = id, k.request(u.Statements...).Fingerprint()
	return at, nil
}

// unusable refuses a write that cannot carry the receipt of its key.
func unusable(why string) error { return fmt.Errorf("%w: %s", ErrKeyUnusable, why) }

// keyedTx is what a local transaction under an idempotency key keeps besides its
// list. It either applies its statements and collects the answers, or replays
// them.
type keyedTx struct {
	key     *IdempotencyKey
	place   *place     // nil if it is kept even if this is rolled back
	unit    txlog.Unit // its id and receipt
	request *attempt.Request
	flavor  txlog.Flavor
	answer  attempt.Answer
	replay  *attempt.Answer
	at      int
	// kept has what is kept instead of the answers; nil as a rule.
	kept *kept.Request
}

// keeps reports whether something else than the answers is kept. kt may be nil.
func (kt *keyedTx) keeps() bool { return kt != nil && kt.kept != nil }

// claim begins the transaction with its receipt: inner is open on c. If the
// request was applied before, found says what to replay, and the transaction is
// rolled back.
func (k *IdempotencyKey) claim(ctx context.Context, c *Conn, inner driver.Tx, receipt string) (*keyedTx, attempt.Outcome) {
	kt := &keyedTx{key: k, request: k.request(), flavor: c.c.dialect.Flavor}
	kt.unit.ID, kt.unit.DataSource, kt.unit.Receipt = txlog.NewID(), c.c.target.DataSource, receipt
	kt.unit.Fingerprint = kt.request.Fingerprint() // until COMMIT knows the whole
	out, found := attempt.InsertReceipt(ctx, c.c.dialect, &c.session, inner, &kt.unit, c.c.receipts)
	c.lossy(out)
	if out.Err != nil || found == nil {
		return kt, out
	}
	if err := found.OfAnother(&kt.unit); err != nil {
		return kt, attempt.Outcome{Class: delivery.Refused, Err: err}
	}
	var err error
	if kt.replay, err = attempt.ReadAnswer(found.Result); err != nil {
		return kt, attempt.Outcome{Class: delivery.Refused, Err: because(ErrRowsUnknown, err)}
	}
	return kt, out
}

// refusesReused returns err. When a key was used for another request, in numbers, it is more
// likely that a value or a text changes from one sending of a request to the next.
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

// replayed answers the next statement of a transaction that is being replayed.
func (kt *keyedTx) replayed(s txlog.Statement, rows bool) (r attempt.Reply, err error) {
	if kt.at >= len(kt.replay.Statements) {
		return r, attempt.ReusedCount(kt.at+1, len(kt.replay.Statements))
	}
	a := &kt.replay.Statements[kt.at]
	if err := a.Differs(kt.at+1, s, kt.request.Answered(kt.flavor, s)); err != nil {
		return r, err
	}
	kt.at++
	if err := a.Failure(); err != nil {
		return r, err
	}
	if !rows {
		return attempt.Reply{Result: a.Result()}, nil
	}
	stored := a.Rows()
	if stored == nil {
		return r, ErrRowsUnknown
	}
	return attempt.Reply{Rows: stored}, nil
}

// ran collects the answer to a statement that was applied.
func (kt *keyedTx) ran(s txlog.Statement, res driver.Result, rows *attempt.Rows) {
	if !kt.keeps() {
		kt.answer.Add(kt.request.Answered(kt.flavor, s), res, rows)
	}
}

// failed collects the error of a statement, after which t goes on.
func (kt *keyedTx) failed(t *localTx, s txlog.Statement, err error) {
	if !kt.keeps() {
		kt.answer.AddFailure(kt.request.Answered(kt.flavor, s), err)
	}
	t.unreplayable("under its idempotency key, a statement that failed is part of the answer")
}

// whole is the unit of the whole transaction so far.
func (kt *keyedTx) whole() *txlog.Unit {
	u := kt.unit
	u.Fingerprint = kt.request.Fingerprint()
	return &u
}

// replayedTx is a local transaction whose request was applied before: its
// writes are answered from the stored answer. Its queries run in a transaction
// that is rolled back.
type replayedTx struct {
	c     *Conn
	ctx   context.Context
	inner driver.Tx
	kt    *keyedTx
}

// Commit implements driver.Tx.
func (t *replayedTx) Commit() error {
	c := t.c
	c.tx.commits()
	c.undo(c.rollback(t.ctx, t.inner))
	c.closed()
	if t.kt.at < len(t.kt.replay.Statements) {
		t.kt.place.back()
		return c.c.refusesReused(attempt.ReusedCount(t.kt.at, len(t.kt.replay.Statements)))
	}
	t.kt.place.within(nil) // its own ROLLBACK is nothing of the request's
	t.kt.key.replay()
	return nil
}

// Rollback implements driver.Tx.
func (t *replayedTx) Rollback() error { return t.c.rolledBack(t.ctx, t.inner) }

// begin begins a local transaction under an idempotency key. Like a DML it waits
// for one under the same key that is still open.
func (k *IdempotencyKey) begin(ctx context.Context, c *Conn, opts driver.TxOptions) (_ driver.Tx, err error) {
	switch {
	case c.pinned != "":
		return nil, unusable(c.pinned)
	case c.tx != nil:
		return nil, unusable("a transaction is open already")
	}
	if _, err := c.lookForReceipts(ctx, true); err != nil {
		if c.dead {
			err = driver.ErrBadConn // nothing was begun, and database/sql takes another connection
		}
		return nil, err
	}
	receipt, place, err := k.receipt(c.c.target.DataSource)
	if err != nil {
		return nil, err
	}
	keep := kept.Of(ctx)
	defer func() {
		if err != nil {
			place.back()
		} else if keep == nil { // what is kept has this place, whatever is written under the key after a rollback
			c.tx.keyed.place = place
			place.within(c.tx)
		}
	}()
	var (
		inner driver.Tx
		kt    *keyedTx
	)
	again, cancel := context.WithTimeout(ctx, c.c.cfg.RetryTimeout)
	defer cancel()
	for pause := jitter.BackOff(c.c.cfg.RetryInitial, c.c.cfg.RetryMax); ; {
		if inner, err = attempt.BeginTx(ctx, c.inner, opts); err != nil {
			return nil, err
		}
		var out attempt.Outcome
		if kt, out = k.claim(ctx, c, inner, receipt); out.Err == nil {
			break
		}
		if keep != nil {
			keep.Outstanding = out.OnReceipt || ctx.Err() != nil
		}
		if !out.OnReceipt || c.dead || !jitter.Sleep(again, pause.NextBackOff()) {
			return nil, c.c.refusesReused(out.Err)
		}
	}
	k.mu.Lock()
	k.answered = kt.replay != nil
	k.mu.Unlock()
	if kt.kept = keep; keep != nil {
		keep.Begun = true
		if kt.replay != nil {
			keep.Stored = kt.replay.Response
		}
	}
	if kt.replay != nil {
		if inner, err = attempt.BeginTx(ctx, c.inner, opts); err != nil {
			return nil, err
		}
		local := c.open(ctx)
		local.ctx, local.keyed = ctx, kt
		return &replayedTx{c: c, ctx: ctx, inner: inner, kt: kt}, nil
	}
	local := c.open(ctx)
	local.ctx, local.keyed, local.receipt = ctx, kt, true
	return &tx{c: c, ctx: ctx, inner: inner}, nil
}
