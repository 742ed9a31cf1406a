package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/bedsql/internal/kept"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/keyed"
	"github.com/bedsql/bed/internal/sqltext"
)

// IdempotencyKey is a caller's own key for a request: see WithIdempotencyKey.
// It is safe for concurrent use.
type IdempotencyKey struct{ key *keyed.Key }

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
	k := keyed.New(key)
	return underKey(ctx, k), &IdempotencyKey{k}
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
	return underKey(ctx, k.Part(part))
}

func underKey(ctx context.Context, k *keyed.Key) context.Context {
	return scoped(ctx, func(s *scope) { s.key, s.confined = k, s.confined || kept.Confined(ctx) })
}

// SetFingerprint identifies the request in place of its SQL and parameters. Use it for
// requests that differ in each resend (gorm's created_at), before the first write.
func (k *IdempotencyKey) SetFingerprint(fingerprint string) { k.key.SetFingerprint(fingerprint) }

// Replayed reports whether anything under this key was answered from an earlier request
// instead of being applied: a write, a local transaction once it is committed, a part.
func (k *IdempotencyKey) Replayed() bool { return k.key.Replayed() }

// unusable refuses a write that cannot carry the receipt of its key.
func unusable(why string) error { return fmt.Errorf("%w: %s", ErrKeyUnusable, why) }

// beginKeyed begins a local transaction under an idempotency key. Like a DML it waits for an open
// one under the same key.
func (c *Conn) beginKeyed(ctx context.Context, k *keyed.Key, opts driver.TxOptions) (_ driver.Tx, err error) {
	if c.pinned != "" {
		return nil, unusable(c.pinned)
	}
	w, err := k.Take(c.c.keys)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.Back()
		}
	}()
	if err := c.beginsKeyed(ctx); err != nil {
		return nil, err
	}
	var (
		t  = &tx{c: c, ctx: ctx}
		kt *keyed.Tx
	)
	keep := kept.Of(ctx)
	if keep != nil && keep.Undo != nil {
		keep.Undo.Home, keep.Undo.Waiting = c.c.home, c.holds
	}
	again, cancel := context.WithTimeout(ctx, c.c.cfg.RetryTimeout)
	defer cancel()
	for pause := jitter.BackOff(c.c.cfg.RetryInitial, c.c.cfg.RetryMax); ; {
		if t.inner, err = attempt.BeginTx(ctx, c.inner, opts); err != nil {
			return nil, err
		}
		var out attempt.Outcome
		if kt, out = w.Claim(ctx, c.c.dialect, &c.session, t.inner, c.c.receipts, keep); c.lossy(out).Err == nil {
			break
		}
		if !out.OnReceipt || c.dead || !jitter.Sleep(again, pause.NextBackOff()) {
			return nil, c.c.keys.Refused(out.Err)
		}
	}
	if kt.Replays() {
		if t.inner, err = attempt.BeginTx(ctx, c.inner, opts); err != nil {
			return nil, err
		}
	}
	local := c.open(ctx, opts)
	if local.keyed = kt; !kt.Keeps() {
		w.Within(local.gone)
	}
	if kt.Replays() {
		return &replayedTx{t, kt}, nil
	}
	return t, nil
}

// beginsKeyed makes the connection ready for a BEGIN under a key.
func (c *Conn) beginsKeyed(ctx context.Context) error {
	if err := c.begins(ctx); err != nil {
		return err
	}
	_, err := c.lookForReceipts(ctx, true)
	if err != nil && c.dead {
		return driver.ErrBadConn // nothing was begun, and database/sql takes another connection
	}
	return err
}

// replayedTx is a local transaction whose request was applied before. The stored answer answers
// its writes. Its queries run in a transaction that is rolled back.
type replayedTx struct {
	*tx
	keyed *keyed.Tx
}

func (t *replayedTx) Commit() error {
	c := t.c
	c.tx.seal(true)
	c.tx.tell(homeReplayed, time.Now())
	c.undo(t.ctx, t.inner)
	c.closed()
	return c.c.keys.Refused(t.keyed.Whole())
}

// unseen is a savepoint before a statement that could end a transaction under an idempotency
// key unseen: a procedure of MySQL's may commit or roll back. Without it afterwards, the
// transaction has ended, and later writes would commit without the receipt.
const unseen = "bed_unseen"

var errEndedUnseen = errors.New("a statement in it, such as CALL, has committed it or rolled it back: " +
	"in a transaction under an idempotency key, or of WithTx, no procedure may")

// mark protects a transaction under a key or of WithTx. It sets the savepoint if s could end t
// unseen. Under a key it refuses s if s would end t. t may be nil.
func (t *localTx) mark(ctx context.Context, s statement) error {
	if t == nil || t.keyed == nil && len(t.homes) == 0 {
		return nil
	}
	switch flavor, kind := t.c.c.dialect.Flavor, s.class.Kind; {
	case t.keyed == nil && (s.class.ImplicitCommit || kind == sqltext.Control || kind == sqltext.Rollback):
		return nil // it is seen
	case s.class.ImplicitCommit, kind == sqltext.Control, kind == sqltext.Rollback:
		return unusable("a statement would end the transaction, use its Commit or Rollback")
	case kind == sqltext.Multi && endsWithin(flavor, s.SQL) && t.keyed != nil:
		return unusable("one of several statements in one text would end the transaction")
	case t.keyed.Replays(), flavor != sqltext.MySQL:
		return nil
	case kind != sqltext.Opaque && kind != sqltext.Multi && (kind != sqltext.Session || !executes(flavor, s.SQL)):
		return nil
	}
	return t.marks(ctx)
}

// marks sets the savepoint, on MySQL.
func (t *localTx) marks(ctx context.Context) error {
	if t.c.c.dialect.Flavor != sqltext.MySQL {
		return nil
	}
	_, _, err := attempt.Exec(ctx, t.c.inner, "SAVEPOINT "+unseen, nil)
	if err != nil {
		t.c.failedInTx(ctx, err, false)
	}
	t.marked = err == nil
	return err
}

// still loses t if it has ended since mark. t may be nil.
func (t *localTx) still(ctx context.Context) error {
	if t == nil || !t.marked || t.state == txLost {
		return nil
	}
	t.marked = false
	ctx, cancel := context.WithTimeout(ctx, t.c.c.cfg.AttemptTimeout)
	defer cancel()
	_, _, err := attempt.Exec(ctx, t.c.inner, "RELEASE SAVEPOINT "+unseen, nil)
	if err == nil {
		return nil
	}
	const noSuchSavepoint = 1305
	switch {
	case attempt.Failed(t.c.c.dialect, err, false).ConnLost:
		t.c.dead = true
		return err
	case dberr.Of(err).Number != noSuchSavepoint:
		t.lose(err)
		return err
	}
	t.tell(homeUnknown, time.Now())
	t.lose(errEndedUnseen)
	if t.keyed != nil && !t.keyed.Keeps() {
		t.keyed.Back() // the receipt says what came of it
	}
	return t.lostError()
}
