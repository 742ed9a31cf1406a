package message

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/internal/kept"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/keyed"
	"github.com/bedsql/bed/internal/sender"
	"github.com/bedsql/bed/txlog"
)

// Handler processes a message and writes its rows in tx. Anything it writes or publishes under
// ctx, through other databases and publishers of bed, commits with tx ([bedsql.WithTx]). An error,
// or a panic, rolls all of it back. Neither the handler nor a procedure that it calls may
// commit.
type Handler = func(ctx context.Context, tx *sql.Tx, msg *message.Message) error

// Redelivery is how long after its first delivery the broker may deliver a message again.
// Config.KeyRetention of the consumer's database must be longer: it erases the receipt of a
// processed message, and a later delivery would be processed again.
func Redelivery(longest time.Duration) Option { return func(o *options) { o.redelivery = longest } }

// MaxFailures is how many times the handler may fail for a message in this process before
// the message is parked. Default 10. With 1 it is parked at once.
func MaxFailures(n int) Option { return func(o *options) { o.failures = n } }

// FailingFor is how long a message must have failed in this process before it is parked, however
// many failures there were. This outlasts a short outage of a service unknown to bed. Default 30
// s; 0 leaves it to MaxFailures.
func FailingFor(d time.Duration) Option { return func(o *options) { o.failing = d } }

// ParkedFor sets the data source and topic for parked messages. The job publishes a message there
// again when an operator retries it. Default: the consumer's name, and the topic of watermill's
// router.
func ParkedFor(dataSource, topic string) Option {
	return func(o *options) { o.source, o.topic = dataSource, topic }
}

// Once makes a handler for watermill's router that processes each message once, for any number of
// deliveries and of consumers with the same name. db is a database opened by bed, with or without
// a tracer around it. consumer is the name under which db remembers processed messages.
//
// The rows of h and the receipt of the consumer and the message's UUID are one local transaction.
// The receipt is an idempotency key and belongs to db's data source, so all processes must use one
// name for it (bedDataSource). If a message has a receipt, Once acknowledges it without calling h.
// It returns nil, the acknowledgement, after h has returned nil and COMMIT was confirmed. Messages
// published in the transaction are then sent, or left to the job. Any error rolls back, and the
// broker delivers the message again.
//
// A message is parked after [MaxFailures] failures of h in this process, over at least
// [FailingFor]. It becomes an entry of the log with the error, visible to operators, and is
// acknowledged. An error does not count as a failure of the message if a database was unreachable,
// busy or locked, or a write is pending ([bedsql.OutcomeOf]: not accepted, accepted, and a broken
// connection). Before each error Once pauses, from 10 ms to 5 s. Retry publishes the message again
// under its UUID; discard drops it. The failures are counted in memory, so several processes, or a
// restarted one, try more often. Once parks a message without a UUID at once, and also a message
// whose UUID was processed with another payload.
//
// Once returns an error if bed did not open db. It also does so without a consumer name or a
// handler, or if KeyRetention is not longer than [Redelivery].
func Once(db *sql.DB, consumer string, h Handler, opts ...Option) (message.NoPublishHandlerFunc, error) {
	c := &consumerOf{db: db, name: consumer, handle: h, options: options{failures: 10, failing: 30 * time.Second}}
	for _, opt := range opts {
		opt(&c.options)
	}
	if db == nil || consumer == "" || h == nil || c.failures < 1 {
		return nil, errors.New("bed: the consumer needs a database, a name, a handler, and 1 or more for MaxFailures")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	found, err := kept.Find(ctx, db)
	if err != nil {
		return nil, err
	}
	bed, ok := found.(*bedsql.Conn)
	if !ok {
		return nil, fmt.Errorf("bed: the database of the consumer %s is not one that bed opened, or what is around it drops the context of BeginTx: "+
			"its messages would be processed more than once", consumer)
	}
	if c.cfg = bed.Config(); c.cfg.KeyRetention <= c.redelivery {
		return nil, fmt.Errorf("bed: the database of the consumer %s forgets after Config.KeyRetention (%v) that a message was processed, and the broker may deliver it again for %v: "+
			"make KeyRetention longer", consumer, c.cfg.KeyRetention, c.redelivery)
	}
	return c.consume, nil
}

type consumerOf struct {
	options
	db     *sql.DB
	name   string
	handle Handler
	cfg    bedsql.Config

	failed, canceled, troubled tally
}

func (c *consumerOf) consume(msg *message.Message) error {
	ctx, cfg := msg.Context(), &c.cfg
	if msg.UUID == "" {
		return c.park(ctx, cfg, msg, "did not take it", errors.New("the message has no UUID, by which a second delivery could be known"))
	}
	// The handler may change the message, and Publish sets another UUID.
	uuid, metadata, payload := msg.UUID, maps.Clone(msg.Metadata), bytes.Clone(msg.Payload)
	failure, err := c.once(ctx, uuid, msg)
	if errors.Is(err, bedsql.ErrKeyReused) {
		return c.park(ctx, cfg, msg, "did not take it", errors.New("another message with its UUID was processed before"))
	}
	msg.UUID, msg.Metadata, msg.Payload = uuid, metadata, payload
	switch {
	case failure == nil && err == nil:
		for _, t := range []*tally{&c.failed, &c.canceled, &c.troubled} {
			t.forget(uuid)
		}
		return nil
	case errors.Is(ctx.Err(), context.Canceled): // which is not the message's fault
		if n, _ := c.canceled.count(uuid); n > 1 {
			cfg.Logger.WithFields(logrus.Fields{"message": uuid, "consumer": c.name, "times": n}).Warn("bed: the message's context was canceled again before it was processed: " +
				"its subscriber must wait longer for an acknowledgement than the handler takes")
		}
		return cmp.Or(failure, err)
	case failure == nil || passing(failure):
		if n, since := c.troubled.count(uuid); failure == nil || since < longestTrouble {
			pauseBefore(ctx, n)
			return cmp.Or(failure, err)
		}
	}
	n, since := c.failed.count(uuid)
	if n < c.failures || c.failures > 1 && since < c.failing {
		pauseBefore(ctx, n)
		return failure
	}
	if err := c.park(ctx, cfg, msg, "failed", failure); err != nil {
		return err
	}
	c.failed.forget(uuid)
	return nil
}

// passing reports whether a handler's error is unrelated to the message: some service was
// unreachable or busy, or a write is pending.
func passing(err error) bool {
	switch bedsql.OutcomeOf(err) {
	case bedsql.OutcomeNotAccepted:
		return !own(err)
	case bedsql.OutcomeAccepted:
		return true
	}
	var network net.Error
	return !own(err) && (errors.Is(err, driver.ErrBadConn) || errors.As(err, &network))
}

// own reports whether a handler's error is its own doing: it outlasts its deadline, has ended
// its transaction, or went on in it after an error (PostgreSQL's 25P02).
func own(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, sql.ErrTxDone) || dberr.Of(err).State == "25P02"
}

// longestTrouble is how long something else may be in a message's way.
const longestTrouble = 24 * time.Hour

// longestPause is less than any broker waits for an acknowledgement by default.
const longestPause = 5 * time.Second

// pauseBefore waits before the n-th redelivery of a message, which would otherwise follow at once.
func pauseBefore(ctx context.Context, n int) {
	jitter.Sleep(ctx, min(10*time.Millisecond<<min(n-1, 10), longestPause))
}

// tally counts the failures of messages, of at most maxCounted messages. The keys are hashes of
// the UUIDs, which may be of any length. It is safe for concurrent use.
type tally struct {
	mu sync.Mutex
	of map[[sha256.Size]byte]counted
}

type counted struct {
	times int
	since time.Time
}

const maxCounted = 10_000

// count counts one failure of a message. It returns their number, and the time since the first.
func (t *tally) count(uuid string) (times int, since time.Duration) {
	id := sha256.Sum256([]byte(uuid))
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[id].times == 0 && len(t.of) >= maxCounted { // another process may have had its messages since
		for other := range t.of {
			delete(t.of, other)
			break
		}
	}
	if t.of == nil {
		t.of = map[[sha256.Size]byte]counted{}
	}
	c := t.of[id]
	if c.times++; c.times == 1 {
		c.since = time.Now()
	}
	t.of[id] = c
	return c.times, time.Since(c.since)
}

func (t *tally) forget(uuid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, sha256.Sum256([]byte(uuid)))
}

// once processes a message. failure is an error that comes back with the message: the handler's
// error, or a refusal of its writes. err is any other error.
func (c *consumerOf) once(ctx context.Context, uuid string, msg *message.Message) (failure, err error) {
	// Handled again it may write something else.
	failure, err = c.onceAs(ctx, uuid, msg, fmt.Sprintf("message %x", sha256.Sum256(msg.Payload)))
	if !errors.Is(err, bedsql.ErrKeyReused) {
		return failure, err
	}
	// A receipt of an older version does not hold the payload.
	if failure, older := c.onceAs(ctx, uuid, msg, "message"); !errors.Is(older, bedsql.ErrKeyReused) {
		return failure, older
	}
	return nil, err
}

// onceAs is once with the fingerprint for the receipt.
func (c *consumerOf) onceAs(ctx context.Context, uuid string, msg *message.Message, fingerprint string) (failure, err error) {
	ctx, key := bedsql.WithIdempotencyKey(ctx, "message\x00"+c.name+"\x00"+uuid)
	key.SetFingerprint(fingerprint)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// It needs no entry: the broker holds the message until COMMIT is confirmed.
	var k keyed.Request
	tx, err := c.db.BeginTx(kept.In(ctx, &k), nil)
	switch {
	case errors.Is(err, bedsql.ErrRowsUnknown): // a procedure has committed a part of it
		return err, nil
	case err != nil:
		return nil, err
	}
	defer func() {
		defer time.AfterFunc(rollbackTimeout, cancel).Stop()
		_ = tx.Rollback()
	}()
	if k.Answered {
		return nil, nil
	}
	group, soft, err := bedsql.Begin(ctx, bedsql.WithTx(tx))
	if err != nil {
		return nil, err
	}
	defer soft.Discard()
	if failure := cmp.Or(c.call(group, tx, msg), ctx.Err()); failure != nil {
		soft.Discard()
		defer time.AfterFunc(rollbackTimeout, cancel).Stop()
		if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) && !own(failure) {
			return nil, failure // the connection broke
		}
		return failure, nil
	}
	k.Response = json.RawMessage("{}")
	if err := tx.Commit(); err != nil {
		if k.Ended || bedsql.OutcomeOf(err) == bedsql.OutcomeRefused || errors.Is(err, sql.ErrTxDone) {
			return err, nil
		}
		return nil, err
	}
	// The log holds anything that End reports: pending, or parked for an operator.
	_ = soft.End(context.WithoutCancel(ctx))
	return nil, nil
}

// rollbackTimeout bounds the wait for a server that falls silent.
const rollbackTimeout = 10 * time.Second

// call has the handler's panic be an error: it would come again with the message.
func (c *consumerOf) call(ctx context.Context, tx *sql.Tx, msg *message.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("bed: the handler of the consumer %s panicked: %v", c.name, p)
		}
	}()
	return c.handle(ctx, tx, msg)
}

// park leaves a message to an operator, as an entry that would publish it again. The text after
// "failed" is shown only to readers with access to the payload (errmask).
func (c *consumerOf) park(ctx context.Context, cfg *bedsql.Config, msg *message.Message, what string, why error) error {
	m := &broker.Message{ID: entry.NewID(), Metadata: map[string]string{}, Payload: msg.Payload}
	for key, value := range msg.Metadata { // the log takes no others
		if broker.Orders(key) {
			continue
		}
		m.Metadata[strings.ToValidUTF8(key, "\ufffd")] = strings.ToValidUTF8(value, "\ufffd")
	}
	m.UUID = cmp.Or(msg.UUID, m.ID)
	m.Topic = cmp.Or(c.topic, message.SubscribeTopicFromCtx(msg.Context()), c.name)
	u := &entry.Unit{ID: m.ID, DataSource: cmp.Or(c.source, c.name), Settings: broker.Settings}
	err := func() error {
		text, args, err := broker.Statement(m)
		if err != nil {
			return err
		}
		params, err := entry.EncodeParams(sender.Named(args))
		if err != nil {
			return err
		}
		u.Statements = []entry.Statement{{SQL: text, Params: params}}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.LogTimeout) // the handler may have used up its own
		defer cancel()
		switch err = cfg.Storage.Add(ctx, cfg.Lease, u); {
		case err == nil:
			err = cfg.Storage.Release(ctx, u, entry.Verdict{Park: true, Err: fmt.Sprintf("the consumer %s %s: %v", c.name, what, why)})
		case !errors.Is(err, txlog.ErrInDoubt):
			return err
		}
		if err != nil { // the job would publish what is there
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.LogTimeout)
			defer cancel()
			return errors.Join(err, cfg.Storage.Remove(ctx, u))
		}
		return nil
	}()
	if err != nil {
		return fmt.Errorf("bed: the message %s failed and could not be parked (%w): %w", m.UUID, err, why)
	}
	cfg.Logger.WithFields(logrus.Fields{"entry": u.ID, "message": m.UUID, "consumer": c.name}).Error("bed: the message is parked after its handler failed: an operator must retry or discard it")
	return nil
}
