package message_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	bedmessage "github.com/bedsql/bed/bedsql/message"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// memory is a broker in memory. The test can take it down and lose its answers.
type memory struct {
	mu       sync.Mutex
	down     error
	lost     bool
	messages []*message.Message
	topics   []string
}

var errDown = errors.New("the broker is down")

func (b *memory) Publish(topic string, messages ...*message.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(messages) != 1 {
		return errors.New("not one message a call")
	}
	if b.down != nil && !b.lost {
		return b.down
	}
	b.messages, b.topics = append(b.messages, messages[0]), append(b.topics, topic)
	if b.lost {
		return errors.New("the answer is lost")
	}
	return nil
}

func (b *memory) Ping(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.down
}

func (b *memory) Close() error { return nil }

func (b *memory) set(down error, lost bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down, b.lost = down, lost
}

func (b *memory) payloads() (all []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.messages {
		all = append(all, string(m.Payload))
	}
	return all
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newPublisher(t *testing.T, b message.Publisher, cfg bedsql.Config) *bedmessage.Publisher {
	t.Helper()
	if cfg.Storage == nil {
		cfg.Storage = txlog.NewMemory()
	}
	p, err := bedmessage.NewPublisher(b, "events", cfg, bedmessage.Confirms())
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

// round is one round of a job for the broker.
func round(t *testing.T, storage txlog.Storage, b message.Publisher) asyncjob.Report {
	t.Helper()
	target, err := bedmessage.Target(b, "events", bedmessage.Confirms())
	must(t, err)
	job, err := asyncjob.New(storage, asyncjob.Targets{"events": target}, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay})
	must(t, err)
	defer job.Close()
	report, err := job.RunOnce(t.Context())
	must(t, err)
	return report
}

// A message published late, by a goroutine or a deferred call, would report missing rows.
func TestMessagesOfAGroupThatHasEndedAreNotSent(t *testing.T) {
	t.Parallel()
	b := &memory{}
	p := newPublisher(t, b, bedsql.Config{})
	for name, begin := range map[string]func() (context.Context, *bedsql.SoftTransaction, error){
		"immediate": func() (context.Context, *bedsql.SoftTransaction, error) { return bedsql.Begin(t.Context()) },
		"staged": func() (context.Context, *bedsql.SoftTransaction, error) {
			return bedsql.Begin(t.Context(), bedsql.Staged())
		},
	} {
		ctx, soft, err := begin()
		must(t, err)
		soft.Discard()
		for _, messages := range [][]*message.Message{{text("a")}, {text("a"), text("b")}} {
			if err := p.Publish(ctx, "orders", messages...); !errors.Is(err, bedsql.ErrEnded) {
				t.Errorf("%s, %d messages: %v", name, len(messages), err)
			}
		}
	}
	if got := b.payloads(); len(got) > 0 {
		t.Errorf("published: %v", got)
	}
}

func waiting(t testing.TB, storage txlog.Storage) []*entry.Unit {
	t.Helper()
	units, err := storage.List(t.Context(), txlog.Filter{})
	must(t, err)
	return units
}

func text(payload string) *message.Message {
	m := message.NewMessage("", []byte(payload))
	m.Metadata.Set("tenant", "a")
	return m
}

func TestPublishedMessageCarriesItsEntrysID(t *testing.T) {
	t.Parallel()
	b, storage := &memory{}, txlog.NewMemory()
	p := newPublisher(t, b, bedsql.Config{Storage: storage})
	m := text("one")
	must(t, p.Publish(t.Context(), "orders", m))
	if len(b.messages) != 1 || b.topics[0] != "orders" || !b.messages[0].Equals(m) || m.UUID == "" {
		t.Errorf("published: %v in %v, wanted %v", b.messages, b.topics, m)
	}
	if left := waiting(t, storage); len(left) != 0 {
		t.Errorf("left in the log: %v", left)
	}
}

func TestMessageWithMetadataThatWouldChangeIsRefused(t *testing.T) {
	t.Parallel()
	b, storage := &memory{}, txlog.NewMemory()
	p := newPublisher(t, b, bedsql.Config{Storage: storage})
	for _, pair := range [][2]string{{"trace", "\xff\x01"}, {"tra\xff", "one"}} {
		m := text("one")
		m.Metadata.Set(pair[0], pair[1])
		if err := p.Publish(t.Context(), "orders", m); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
			t.Errorf("Publish says %v", err)
		}
	}
	if err := p.Publish(t.Context(), "orders\xff", text("one")); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
		t.Errorf("Publish to a topic that would change: %v", err)
	}
	if err := p.Publish(t.Context(), "orders", nil); err == nil {
		t.Error("nil is published")
	}
	if left := waiting(t, storage); len(b.messages)+len(left) != 0 {
		t.Errorf("published: %v, left in the log: %v", b.messages, left)
	}
}

func TestJobPublishesWhatTheBrokerWasDownFor(t *testing.T) {
	t.Parallel()
	b, storage := &memory{down: errDown}, txlog.NewMemory()
	p := newPublisher(t, b, bedsql.Config{Storage: storage, NoSyncRetry: true})
	m, binary := text("one"), text("\xff\x00")
	for _, m := range []*message.Message{m, binary} {
		if err := p.Publish(t.Context(), "orders", m); !errors.Is(err, bedsql.ErrPending) || !errors.Is(err, errDown) {
			t.Fatalf("Publish: %v", err)
		}
	}
	left := waiting(t, storage)
	if len(left) != 2 || left[0].ID != m.UUID || left[0].DataSource != "events" || left[0].Statements[0].SQL != "PUBLISH orders" || !left[0].InDoubt {
		t.Fatalf("the log: %+v", left)
	}
	if r := round(t, storage, b); r.Claimed != 0 {
		t.Errorf("while the broker is down: %v", r)
	}
	b.set(nil, false)
	if r := round(t, storage, b); r.Delivered != 2 {
		t.Errorf("when it is up again: %v", r)
	}
	slices.SortFunc(b.messages, func(a, b *message.Message) int { return strings.Compare(a.UUID, b.UUID) })
	if len(b.messages) != 2 || !b.messages[0].Equals(m) || !b.messages[1].Equals(binary) {
		t.Errorf("published: %v", b.messages)
	}
}

func TestMessageWhoseAnswerWasLostIsPublishedAgainUnderItsUUID(t *testing.T) {
	t.Parallel()
	b, storage := &memory{lost: true}, txlog.NewMemory()
	p := newPublisher(t, b, bedsql.Config{Storage: storage, SyncMaxDeliveryTryTimes: 1, RetryInitial: time.Millisecond})
	if err := p.Publish(t.Context(), "orders", text("one")); !errors.Is(err, bedsql.ErrPending) {
		t.Fatalf("Publish: %v", err)
	}
	b.set(nil, false)
	round(t, storage, b)
	if len(b.messages) != 3 || b.messages[0].UUID != b.messages[1].UUID || b.messages[1].UUID != b.messages[2].UUID {
		t.Errorf("published: %v", b.messages)
	}
}

func TestStagedMessagesArePublishedInOrderOrNotAtAll(t *testing.T) {
	t.Parallel()
	b, storage := &memory{}, txlog.NewMemory()
	p := newPublisher(t, b, bedsql.Config{Storage: storage})
	ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
	must(t, err)
	must(t, p.Publish(ctx, "orders", text("one")))
	must(t, p.Publish(ctx, "stock", text("two"), text("three")))
	if len(b.payloads()) != 0 {
		t.Error("published before End")
	}
	must(t, soft.End(t.Context()))
	if got := b.payloads(); !slices.Equal(got, []string{"one", "two", "three"}) {
		t.Errorf("published: %v", got)
	}
	ctx, soft, err = bedsql.Begin(t.Context(), bedsql.Staged())
	must(t, err)
	must(t, p.Publish(ctx, "orders", text("four")))
	soft.Discard()
	if got := b.payloads(); len(got) != 3 {
		t.Errorf("published after Discard: %v", got)
	}
	// Messages after a pending one are left to the job, which keeps no order.
	b.set(errDown, false)
	if err := p.Publish(t.Context(), "orders", text("five"), text("six"), text("seven")); !errors.Is(err, bedsql.ErrPending) {
		t.Errorf("Publish of several while the broker is down: %v", err)
	}
	b.set(nil, false)
	round(t, storage, b)
	if got := b.payloads()[3:]; len(got) != 3 || !slices.Contains(got, "five") || !slices.Contains(got, "six") || !slices.Contains(got, "seven") {
		t.Errorf("published: %v", got)
	}
}

func openLog(t *testing.T, db testdb.DB) *txlog.SQLStorage {
	t.Helper()
	storage, err := txlog.Open(t.Context(), db.Driver, db.DSN)
	must(t, err)
	t.Cleanup(func() { _ = storage.Close() })
	return storage
}

// pendingBehind returns the entry for which a message waits.
func pendingBehind(t *testing.T, err error) string {
	t.Helper()
	var behind *bedsql.BehindError
	if !errors.Is(err, bedsql.ErrPending) || !errors.As(err, &behind) {
		t.Errorf("Publish: %v, wanted to be behind another message", err)
		return ""
	}
	return behind.Entry
}

func TestMessagesUnderAnOrderKeyArePublishedInItsOrder(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		storage := openLog(t, db)
		b := &memory{down: errDown}
		p := newPublisher(t, b, bedsql.Config{Storage: storage, NoSyncRetry: true})
		key := bedsql.WithOrderKey(t.Context(), "customer 1")
		first := text("one")
		if err := p.Publish(key, "orders", first); !errors.Is(err, errDown) {
			t.Fatalf("Publish: %v", err)
		}
		b.set(nil, false)
		for _, payload := range []string{"two", "three"} {
			if at := pendingBehind(t, p.Publish(key, "stock", text(payload))); at != first.UUID {
				t.Errorf("%s waits for %q, wanted %s", payload, at, first.UUID)
			}
		}
		pendingBehind(t, p.Publish(key, "orders", text("four"), text("five")))
		must(t, p.Publish(bedsql.WithOrderKey(t.Context(), "customer 2"), "orders", text("another")))
		must(t, p.Publish(t.Context(), "orders", text("none")))
		for range 5 {
			round(t, storage, b)
		}
		if got := b.payloads(); !slices.Equal(got, []string{"another", "none", "one", "two", "three", "four", "five"}) || len(waiting(t, storage)) != 0 {
			t.Errorf("published: %v; left: %+v", got, waiting(t, storage))
		}
		for i, want := range []string{"customer 2", "", "customer 1"} {
			if got := b.messages[i].Metadata.Get(bedmessage.OrderKey); got != want {
				t.Errorf("%s carries the key %q, wanted %q", b.messages[i].Payload, got, want)
			}
		}
	})
}

func TestMessagesOfOneGroupUnderAnOrderKeyArePublishedByItsEnd(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, c *consuming) {
		b := &memory{}
		p := newPublisher(t, b, bedsql.Config{Storage: c.storage})
		key := bedsql.WithOrderKey(t.Context(), "customer 1")
		must(t, p.Publish(key, "orders", text("one"), text("two"), text("three")))
		tx, err := c.pool.BeginTx(t.Context(), nil)
		must(t, err)
		ctx, soft, err := bedsql.Begin(t.Context(), bedsql.WithTx(tx))
		must(t, err)
		must(t, p.Publish(bedsql.WithOrderKey(ctx, "customer 1"), "orders", text("four"), text("five")))
		must(t, tx.Commit())
		must(t, soft.End(t.Context()))
		if got := b.payloads(); !slices.Equal(got, []string{"one", "two", "three", "four", "five"}) || len(waiting(t, c.storage)) != 0 {
			t.Errorf("published: %v; left: %+v", got, waiting(t, c.storage))
		}
	})
}

// flaky fails every third message before it takes it, and every fifth after.
type flaky struct {
	memory
	n atomic.Int64
}

func (b *flaky) Publish(topic string, messages ...*message.Message) error {
	n := b.n.Add(1)
	if n%3 == 0 {
		return errDown
	}
	err := b.memory.Publish(topic, messages...)
	if n%5 == 0 {
		return errors.New("the answer is lost")
	}
	return err
}

// A new message under an order key follows all earlier ones, published by callers and by jobs,
// while the broker fails and loses answers.
func TestOrderKeyHoldsWhileTheBrokerFails(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		storage := openLog(t, db)
		b := &flaky{}
		quiet := logrus.New()
		quiet.SetOutput(io.Discard)
		p := newPublisher(t, b, bedsql.Config{Storage: storage, NoSyncRetry: true, Logger: quiet})
		target, err := bedmessage.Target(b, "events", bedmessage.Confirms())
		must(t, err)
		job, err := asyncjob.New(storage, asyncjob.Targets{"events": target}, asyncjob.Config{
			MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, MaxDeliveryTryTimes: 1000, Logger: quiet,
		})
		must(t, err)
		defer job.Close()
		var publishing sync.WaitGroup
		for k := range 4 {
			publishing.Go(func() {
				ctx := bedsql.WithOrderKey(t.Context(), fmt.Sprint("customer ", k))
				for i := range 12 {
					messages := []*message.Message{text(fmt.Sprintf("%02d a", i)), text(fmt.Sprintf("%02d b", i))}[:1+i%2]
					if err := p.Publish(ctx, "orders", messages...); err != nil && !errors.Is(err, bedsql.ErrPending) {
						t.Errorf("Publish: %v", err)
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { publishing.Wait(); close(done) }()
		for published := false; !published || len(waiting(t, storage)) > 0; {
			_, err := job.RunOnce(t.Context())
			must(t, err)
			select {
			case <-done:
				published = true
			default:
			}
		}
		last, known := map[string]string{}, map[string]bool{}
		for _, m := range b.messages {
			if known[m.UUID] {
				continue
			}
			known[m.UUID] = true
			key, payload := m.Metadata.Get(bedmessage.OrderKey), string(m.Payload)
			if payload <= last[key] {
				t.Errorf("under %s came %s after %s", key, payload, last[key])
			}
			last[key] = payload
		}
		if len(known) != 4*18 || len(b.messages) == len(known) {
			t.Errorf("%d messages, %d different", len(b.messages), len(known))
		}
	})
}

func TestSkippedMessageIsPublishedLateWhenItIsRetried(t *testing.T) {
	t.Parallel()
	db, b := testdb.SQLite(t), &memory{down: errDown}
	storage := openLog(t, db)
	p := newPublisher(t, b, bedsql.Config{Storage: storage, NoSyncRetry: true})
	key := bedsql.WithOrderKey(t.Context(), "customer 1")
	first := text("one")
	if err := p.Publish(key, "orders", first); !errors.Is(err, errDown) {
		t.Fatalf("Publish: %v", err)
	}
	pendingBehind(t, p.Publish(key, "orders", text("two")))
	_, err := logdb.Of(storage).Decide(t.Context(), entry.DecideSkip, []string{first.UUID}, nil, nil)
	must(t, err)
	b.set(nil, false)
	round(t, storage, b)
	must(t, storage.Retry(t.Context(), first.UUID))
	round(t, storage, b)
	if got := b.payloads(); !slices.Equal(got, []string{"two", "one"}) || len(waiting(t, storage)) != 0 {
		t.Errorf("published: %v; left: %+v", got, waiting(t, storage))
	}
}

func TestContextsThatMakeNoSenseForAMessageAreErrors(t *testing.T) {
	t.Parallel()
	b, storage := &memory{}, txlog.NewMemory()
	p := newPublisher(t, b, bedsql.Config{Storage: storage, Guarantee: bedsql.ExactlyOnce})
	keyed, _ := bedsql.WithIdempotencyKey(t.Context(), "k")
	if err := p.Publish(keyed, "orders", text("key")); !errors.Is(err, bedsql.ErrKeyUnusable) || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
		t.Errorf("under a key: %v", err)
	}
	group, soft, err := bedsql.Begin(keyed, bedsql.Staged())
	must(t, err)
	if err := p.Publish(group, "orders", text("group")); !errors.Is(err, bedsql.ErrKeyUnusable) {
		t.Errorf("in a staged group under a key: %v", err)
	}
	soft.Discard()
	if err := p.Publish(bedsql.RequireRows(t.Context(), 1), "orders", text("rows")); err == nil || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
		t.Errorf("under RequireRows: %v", err)
	}
	if err := p.Publish(bedsql.WithOrderKey(t.Context(), ""), "orders", text("order")); !errors.Is(err, bedsql.ErrOrderUnusable) {
		t.Errorf("under an empty order key: %v", err)
	}
	if err := p.Publish(t.Context(), "", text("topic")); err == nil {
		t.Error("without a topic: no error")
	}
	must(t, p.Publish(bedsql.WithGuarantee(t.Context(), bedsql.ExactlyOnce), "orders", text("once")))
	must(t, p.Publish(bedsql.Unlogged(t.Context()), "orders", text("skipped")))
	b.set(errDown, false)
	if err := p.Publish(bedsql.Unlogged(t.Context()), "orders", text("lost")); !errors.Is(err, errDown) || errors.Is(err, bedsql.ErrPending) {
		t.Errorf("under Unlogged while the broker is down: %v", err)
	}
	if got := b.payloads(); !slices.Equal(got, []string{"once", "skipped"}) || len(waiting(t, storage)) != 0 {
		t.Errorf("published: %v, left: %v", got, waiting(t, storage))
	}
}

func TestPublisherThatHangsIsLeftToTheJob(t *testing.T) {
	t.Parallel()
	b, storage := &hanging{held: make(chan struct{})}, txlog.NewMemory()
	defer close(b.held)
	p := newPublisher(t, b, bedsql.Config{Storage: storage, AttemptTimeout: 2 * time.Second})
	if err := p.Publish(t.Context(), "orders", text("one")); !errors.Is(err, bedsql.ErrPending) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Publish: %v", err)
	}
	if left := waiting(t, storage); len(left) != 1 || !left[0].InDoubt {
		t.Errorf("the log: %+v", left)
	}
}

// hanging never answers.
type hanging struct {
	memory
	held chan struct{}
}

func (b *hanging) Publish(string, ...*message.Message) error {
	<-b.held
	return nil
}

func TestPublisherNotKnownToConfirmIsRefused(t *testing.T) {
	t.Parallel()
	cfg := bedsql.Config{Storage: txlog.NewMemory()}
	if _, err := bedmessage.NewPublisher(&memory{}, "events", cfg); err == nil {
		t.Error("no error for a publisher of which it is not known")
	}
	for name, p := range map[string]message.Publisher{"nil": nil, "a nil pointer": (*memory)(nil)} {
		if _, err := bedmessage.NewPublisher(p, "events", cfg, bedmessage.Confirms()); err == nil {
			t.Errorf("no error for %s", name)
		}
	}
}

// If a job's configuration gives the name to a database, the job must not take a message for SQL.
// If it gives a database's name to a broker, it must not take SQL for a message.
func TestMessageIsNotDeliveredAsSQL(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		targetOf := testdb.By[func(string) (delivery.Target, error)]{MySQL: mysql.Target, Postgres: postgres.Target, SQLite: sqlite.Target}.For(db.Driver)
		target, err := targetOf(db.DSN)
		must(t, err)
		b, storage := &memory{down: errDown}, txlog.NewMemory()
		p := newPublisher(t, b, bedsql.Config{Storage: storage, NoSyncRetry: true})
		if err := p.Publish(t.Context(), "orders", text("one")); !errors.Is(err, bedsql.ErrPending) {
			t.Fatal(err)
		}
		job, err := asyncjob.New(storage, asyncjob.Targets{"events": target}, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay})
		must(t, err)
		defer job.Close()
		report, err := job.RunOnce(t.Context())
		must(t, err)
		// SQLite's job looks for the setting in vain, and parks the text because it is not SQL.
		if left := waiting(t, storage); report.Delivered != 0 || report.PushedBack+report.Parked != 1 || len(left) != 1 {
			t.Errorf("a message and a job that knows a database: %v, %+v", report, left)
		}
		sql := txlog.NewMemory()
		u := &entry.Unit{ID: entry.NewID(), DataSource: "events", Settings: target.Settings, Statements: []entry.Statement{{SQL: "DELETE FROM a"}}}
		must(t, sql.Add(t.Context(), time.Minute, u))
		must(t, sql.Release(t.Context(), u, entry.Verdict{}))
		b.set(nil, false)
		if r := round(t, sql, b); r.Claimed != 1 || r.Delivered != 0 || len(b.payloads()) != 0 || len(waiting(t, sql)) != 1 {
			t.Errorf("SQL and a job that knows a broker: %v, %v", r, b.payloads())
		}
	})
}

// With the application's own UUIDs, a consumer with Once would ignore all messages but the first
// with the same UUID, and JetStream would drop them.
func TestMetadataDoNotReplaceTheIDOfAMessage(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		c := newConsuming(t, db)
		b := &memory{}
		p := newPublisher(t, b, bedsql.Config{Storage: c.storage, NoSyncRetry: true})
		publish := func(payload string) {
			m := text(payload)
			m.Metadata.Set("_watermill_message_uuid", "mine")
			m.Metadata.Set("Nats-Msg-Id", "mine")
			if err := p.Publish(t.Context(), "orders", m); bedsql.OutcomeOf(err) > bedsql.OutcomeAccepted {
				t.Errorf("Publish: %v", err)
			}
			if m.Metadata.Get("Nats-Msg-Id") != "mine" {
				t.Error("the application's own metadata were changed")
			}
		}
		publish("one")
		b.set(errDown, false)
		publish("two")
		publish("three")
		b.set(nil, false)
		round(t, c.storage, b)
		consume := once(t, c.pool, "billing", c.insert)
		for _, m := range b.messages {
			if m.Metadata.Get("tenant") != "a" || len(m.Metadata) != 1 {
				t.Errorf("the metadata: %v", m.Metadata)
			}
			must(t, consume(delivered(m.UUID, string(m.Payload))))
		}
		c.saw("one", "three", "two")
	})
}

func TestMessageThatIsAnOrderToItsBrokerIsRefused(t *testing.T) {
	t.Parallel()
	b, storage := &memory{}, txlog.NewMemory()
	p := newPublisher(t, b, bedsql.Config{Storage: storage})
	for _, key := range []string{"Nats-Rollup", "nats-expected-stream", "Nats-TTL", "Nats-Schedule"} {
		m := text("one")
		m.Metadata.Set(key, "sub")
		if err := p.Publish(t.Context(), "orders", m); bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
			t.Errorf("%s: %v", key, err)
		}
	}
	forwarded := text("one")
	forwarded.Metadata.Set("Nats-Stream", "orders")
	must(t, p.Publish(t.Context(), "orders", forwarded))
	if left := waiting(t, storage); len(b.messages) != 1 || len(left) != 0 {
		t.Errorf("published: %v, left in the log: %v", b.messages, left)
	}
}
