package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/bedsql/bed/bedsql/internal/kept"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/sqltext"
)

// keyedTx is the state of a local transaction under an idempotency key, besides its list. It
// either applies its statements and collects the answers, or replays them.
type keyedTx struct {
	*keyedWrite
	unit    entry.Unit // its id and receipt
	request *attempt.Request
	answer  attempt.Answer
	replay  *attempt.Answer
	at      int
	// kept holds a response to store instead of the answers; usually nil. The key then stays
	// taken, even after a rollback.
	kept *kept.Request
}

// keeps reports whether something else than the answers is kept. kt may be nil.
func (kt *keyedTx) keeps() bool { return kt != nil && kt.kept != nil }

// claim inserts the receipt into the transaction inner, open on c. If an earlier request
// was applied, claim rolls inner back, and the keyedTx replays that one's answer.
func (w *keyedWrite) claim(ctx context.Context, c *Conn, inner driver.Tx) (*keyedTx, attempt.Outcome) {
	kt := &keyedTx{keyedWrite: w, request: w.key.request(), kept: kept.Of(ctx)}
	kt.unit.ID, kt.unit.DataSource, kt.unit.Receipt = entry.NewID(), c.c.target.DataSource, w.receipt
	kt.unit.Fingerprint = kt.request.Fingerprint() // until COMMIT knows the whole
	out, found := attempt.InsertReceipt(ctx, c.c.dialect, &c.session, inner, &kt.unit, c.c.receipts)
	c.lossy(out)
	if out.Err != nil || found == nil {
		return kt, out
	}
	if err := found.OfAnother(&kt.unit); err != nil {
		return kt, attempt.Outcome{Class: dialect.Refused, Err: err}
	}
	var err error
	if kt.replay, err = attempt.ReadAnswer(found.Result); err != nil {
		return kt, attempt.Outcome{Class: dialect.Refused, Err: because(ErrRowsUnknown, err)}
	}
	return kt, out
}

// replayed answers the next statement of a replayed transaction.
func (kt *keyedTx) replayed(s entry.Statement, rows bool) (r attempt.Reply, err error) {
	if kt.at >= len(kt.replay.Statements) {
		return r, attempt.ReusedCount(kt.at+1, len(kt.replay.Statements))
	}
	a := &kt.replay.Statements[kt.at]
	if err := a.Differs(kt.at+1, s, kt.request.Answered(kt.c.dialect.Flavor, s)); err != nil {
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

// ran collects the answer to an applied statement.
func (kt *keyedTx) ran(s entry.Statement, res driver.Result, rows *attempt.Rows) {
	if !kt.keeps() {
		kt.answer.Add(kt.request.Answered(kt.c.dialect.Flavor, s), res, rows)
	}
}

// failed collects the error of a statement that leaves t going.
func (kt *keyedTx) failed(t *localTx, s entry.Statement, err error) {
	if !kt.keeps() {
		kt.answer.AddFailure(kt.request.Answered(kt.c.dialect.Flavor, s), err)
	}
	t.unreplayable("under its idempotency key, a statement that failed is part of the answer")
}

// whole is the unit of the whole transaction so far.
func (kt *keyedTx) whole() *entry.Unit {
	u := kt.unit
	u.Fingerprint = kt.request.Fingerprint()
	return &u
}

// replayedTx is a local transaction whose request was applied before. The stored answer answers
// its writes. Its queries run in a transaction that is rolled back.
type replayedTx struct {
	*tx
	kt *keyedTx
}

// Commit implements driver.Tx.
func (t *replayedTx) Commit() error {
	c := t.c
	c.tx.commits()
	c.undo(c.rollback(t.ctx, t.inner))
	c.closed()
	if t.kt.at < len(t.kt.replay.Statements) {
		t.kt.back()
		return c.c.refusesReused(attempt.ReusedCount(t.kt.at, len(t.kt.replay.Statements)))
	}
	t.kt.key.of.replayed.Store(true)
	return nil
}

// begin begins a local transaction under an idempotency key. Like a DML it waits for an open one
// under the same key.
func (k *IdempotencyKey) begin(ctx context.Context, c *Conn, opts driver.TxOptions) (driver.Tx, error) {
	if c.pinned != "" {
		return nil, unusable(c.pinned)
	}
	w, err := k.take(c.c)
	if err != nil {
		return nil, err
	}
	tx, err := w.begin(ctx, c, opts)
	if err != nil {
		w.back()
	}
	return tx, err
}

func (w *keyedWrite) begin(ctx context.Context, c *Conn, opts driver.TxOptions) (_ driver.Tx, err error) {
	if err := c.begins(ctx); err != nil {
		return nil, err
	}
	if _, err := c.lookForReceipts(ctx, true); err != nil {
		if c.dead {
			err = driver.ErrBadConn // nothing was begun, and database/sql takes another connection
		}
		return nil, err
	}
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
		if kt, out = w.claim(ctx, c, inner); out.Err == nil {
			break
		}
		if kt.keeps() {
			kt.kept.Outstanding = out.OnReceipt || ctx.Err() != nil
		}
		if !out.OnReceipt || c.dead || !jitter.Sleep(again, pause.NextBackOff()) {
			return nil, c.c.refusesReused(out.Err)
		}
	}
	if kt.replay != nil {
		if inner, err = attempt.BeginTx(ctx, c.inner, opts); err != nil {
			return nil, err
		}
	}
	local := c.open(ctx)
	local.keyed = kt
	if keep := kt.kept; keep == nil {
		w.in.Store(local)
	} else if keep.Begun, keep.Answered = true, kt.replay != nil; keep.Answered {
		keep.Stored = kt.replay.Response
	}
	t := &tx{c: c, ctx: ctx, inner: inner}
	if kt.replay != nil {
		return &replayedTx{t, kt}, nil
	}
	return t, nil
}

// unseen is a savepoint before a statement that could end a transaction under an idempotency
// key unseen: a procedure of MySQL's may commit or roll back. Without it afterwards, the
// transaction has ended, and later writes would commit without the receipt.
const unseen = "bed_unseen"

var errEndedUnseen = errors.New("a statement in it, such as CALL, has committed it or rolled it back: " +
	"in a transaction under an idempotency key no procedure may")

// mark sets the savepoint before s, if s could end t. t may be nil.
func (t *localTx) mark(ctx context.Context, s statement) error {
	if t == nil || t.keyed == nil || t.keyed.replay != nil || t.c.c.dialect.Flavor != sqltext.MySQL {
		return nil
	}
	switch kind := s.class.Kind; {
	case kind == sqltext.Opaque, kind == sqltext.Multi, kind == sqltext.Session && executes(sqltext.MySQL, s.SQL):
	default:
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
		t.c.kill()
		return err
	case dberr.Of(err).Number != noSuchSavepoint:
		t.lose(err)
		return err
	}
	t.tell(homeUnknown, time.Now())
	t.lose(errEndedUnseen)
	if !t.keyed.keeps() {
		t.keyed.back() // the receipt says what came of it
	}
	return t.lostError()
}
