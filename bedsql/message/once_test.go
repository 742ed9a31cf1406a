package message_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/internal/kept"
	bedmessage "github.com/bedsql/bed/bedsql/message"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/keyed"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// consuming is a consumer's database with a table of processed messages, and the log. The log is
// in the same database, except for SQLite.
type consuming struct {
	t       testing.TB
	db      testdb.DB
	storage txlog.Storage
	pool    *sql.DB // opened by bed
	bare    *sql.DB
	mu      sync.Mutex
	calls   int
}

func newConsuming(t *testing.T, db testdb.DB, change ...func(*bedsql.Config)) *consuming {
	t.Helper()
	log := db
	if db.Driver == testdb.DriverSQLite {
		log = testdb.SQLite(t)
	}
	storage := openLog(t, log)
	cfg := bedsql.Config{Storage: storage}
	for _, f := range change {
		f(&cfg)
	}
	c := &consuming{t: t, db: db, storage: storage, bare: db.Open(t)}
	c.pool = c.open(db.DSN, cfg)
	_, err := c.bare.Exec("CREATE TABLE seen (payload VARCHAR(100) NOT NULL)")
	must(t, err)
	return c
}

// eachServer runs f with the log in the consumer's database.
func eachServer(t *testing.T, f func(t *testing.T, c *consuming)) {
	t.Helper()
	for _, driver := range []string{testdb.DriverMySQL, testdb.DriverPostgres} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			f(t, newConsuming(t, testdb.New(t, driver)))
		})
	}
}

// open opens a DSN by bed.
func (c *consuming) open(dsn string, cfg bedsql.Config) *sql.DB {
	c.t.Helper()
	register := testdb.By[func(string, bedsql.Config) error]{MySQL: mysql.Register, Postgres: postgres.Register, SQLite: sqlite.Register}.For(c.db.Driver)
	name := fmt.Sprintf("bed-%s-%d", strings.ReplaceAll(c.t.Name(), "/", "-"), time.Now().UnixNano())
	if err := register(name, cfg); err != nil {
		c.t.Fatal(err)
	}
	pool, err := sql.Open(name, dsn)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// insert is a handler that writes a row.
func (c *consuming) insert(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
	c.mu.Lock()
	c.calls++
	c.mu.Unlock()
	_, err := tx.ExecContext(ctx, "INSERT INTO seen VALUES ('"+string(msg.Payload)+"')")
	return err
}

// seen are the rows.
func (c *consuming) seen() (all []string) {
	c.t.Helper()
	rows, err := c.bare.Query("SELECT payload FROM seen ORDER BY payload")
	if err != nil {
		c.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			c.t.Fatal(err)
		}
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		c.t.Fatal(err)
	}
	return all
}

func (c *consuming) saw(want ...string) {
	c.t.Helper()
	if got := c.seen(); !slices.Equal(got, want) {
		c.t.Errorf("the rows: %v, wanted %v", got, want)
	}
}

// parksAtTheThird fails the test unless the third delivery of a message parks it. It returns the
// entries of the log.
func (c *consuming) parksAtTheThird(consume message.NoPublishHandlerFunc) []*entry.Unit {
	c.t.Helper()
	for range 2 {
		if err := consume(delivered("m-1", "one")); err == nil {
			c.t.Error("acknowledged before it was parked")
		}
	}
	must(c.t, consume(delivered("m-1", "one")))
	left := waiting(c.t, c.storage)
	if len(left) != 1 || !left[0].Parked {
		c.t.Fatalf("the log: %+v", left)
	}
	return left
}

// delivered is a message as a broker delivers it, a new copy each time.
func delivered(uuid, payload string) *message.Message {
	return message.NewMessage(uuid, []byte(payload))
}

func TestMessageIsProcessedOnceHoweverOftenItIsDelivered(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		c := newConsuming(t, db)
		consume := once(t, c.pool, "billing", c.insert)
		for range 3 { // as after a crash between COMMIT and the acknowledgement
			must(t, consume(delivered("m-1", "one")))
		}
		must(t, consume(delivered("m-2", "two")))
		c.saw("one", "two")
		if c.calls != 2 {
			t.Errorf("the handler ran %d times", c.calls)
		}
		must(t, once(t, c.pool, "shipping", c.insert)(delivered("m-1", "one")))
		c.saw("one", "one", "two") // another consumer has its own
		// A handler without writes has processed the message too.
		idle := 0
		nothing := once(t, c.pool, "idle", func(context.Context, *sql.Tx, *message.Message) error { idle++; return nil })
		must(t, nothing(delivered("m-1", "one")))
		must(t, nothing(delivered("m-1", "one")))
		if idle != 1 {
			t.Errorf("a handler that writes nothing ran %d times", idle)
		}
	})
}

func TestFailedMessageIsRolledBackAndProcessedWhenItComesAgain(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		c := newConsuming(t, db)
		broken := errors.New("broken")
		fails, panics := true, false
		consume := once(t, c.pool, "billing", func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
			must(t, c.insert(ctx, tx, msg))
			if panics {
				panic("panicked")
			}
			if fails {
				return broken
			}
			return nil
		})
		if err := consume(delivered("m-1", "one")); !errors.Is(err, broken) {
			t.Errorf("the handler's error: %v", err)
		}
		panics = true
		if err := consume(delivered("m-1", "one")); err == nil {
			t.Error("the handler's panic: no error")
		}
		c.saw()
		fails, panics = false, false
		must(t, consume(delivered("m-1", "one")))
		c.saw("one")
	})
}

// Watermill's middleware marks a message before its handler runs. After a failure of the handler,
// it takes the second delivery for a duplicate.
func TestWhatADeduplicatorLosesIsProcessed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		c := newConsuming(t, db)
		for name, by := range map[string]func(bedmessage.Handler) message.NoPublishHandlerFunc{
			"deduplicator": func(h bedmessage.Handler) message.NoPublishHandlerFunc {
				handler := (&middleware.Deduplicator{}).Middleware(func(msg *message.Message) ([]*message.Message, error) {
					tx, err := c.bare.Begin()
					must(t, err)
					if err := h(msg.Context(), tx, msg); err != nil {
						return nil, errors.Join(err, tx.Rollback())
					}
					return nil, tx.Commit()
				})
				return func(msg *message.Message) error {
					_, err := handler(msg)
					return err
				}
			},
			"once": func(h bedmessage.Handler) message.NoPublishHandlerFunc { return once(t, c.pool, "billing", h) },
		} {
			first := true
			consume := by(func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
				if first {
					first = false
					return errors.New("the first time it fails")
				}
				return c.insert(ctx, tx, msg)
			})
			if err := consume(delivered("m-"+name, name)); err == nil {
				t.Errorf("%s: the failure is not reported", name)
			}
			must(t, consume(delivered("m-"+name, name)))
		}
		c.saw("once")
	})
}

func TestHandlersMessagesAreOfItsTransaction(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, c *consuming) {
		b := &memory{}
		p := newPublisher(t, b, bedsql.Config{Storage: c.storage, NoSyncRetry: true})
		fails := true
		consume := once(t, c.pool, "billing", func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
			must(t, c.insert(ctx, tx, msg))
			must(t, p.Publish(ctx, "billed", text("a"), text("b")))
			if len(b.payloads()) != 0 {
				t.Error("published before COMMIT")
			}
			if fails {
				return errors.New("broken")
			}
			return nil
		})
		if err := consume(delivered("m-1", "one")); err == nil || len(waiting(t, c.storage)) != 0 {
			t.Errorf("the handler's error: %v, %v", err, waiting(t, c.storage))
		}
		fails = false
		must(t, consume(delivered("m-1", "one")))
		must(t, consume(delivered("m-1", "one")))
		c.saw("one")
		if got := b.payloads(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("published: %v", got)
		}
		b.mu.Lock()
		b.messages = nil
		b.mu.Unlock()
		b.set(errDown, false) // what is committed is acknowledged all the same, and the job publishes it
		must(t, consume(delivered("m-2", "two")))
		b.set(nil, false)
		round(t, c.storage, b)
		if got := b.payloads(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("published by the job: %v", got)
		}
	})
}

func TestUnansweredCommitIsNoAcknowledgement(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, c *consuming) {
		must(t, once(t, c.pool, "billing", c.insert)(delivered("m-0", "zero")))
		proxy := testproxy.New(t, c.db.Addr())
		pool := c.open(c.db.Via(proxy.Addr()).DSN, bedsql.Config{Storage: c.storage, NoSyncRetry: true})
		struck := proxy.CutAfter(testproxy.Commit)
		if c.db.Driver == testdb.DriverPostgres {
			proxy.Forget()
			struck = proxy.CutAfter(testproxy.Text("commit"))
		}
		consume := once(t, pool, "billing", c.insert)
		if err := consume(delivered("m-1", "one")); !errors.Is(err, bedsql.ErrUnknownOutcome) {
			t.Errorf("without an answer to COMMIT: %v", err)
		}
		if left := waiting(t, c.storage); len(left) > 0 { // the broker has the message
			t.Errorf("the log: %+v", left)
		}
		select {
		case <-struck:
		default:
			t.Fatal("no COMMIT was cut")
		}
		calls := c.calls
		must(t, consume(delivered("m-1", "one")))
		c.saw("one", "zero")
		if c.calls != calls {
			t.Error("the handler ran again after a COMMIT that was lost on its way back")
		}
	})
}

// The commit would acknowledge unfinished work of the handler.
func TestHandlerThatCommitsByItselfCommitsNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		c := newConsuming(t, db)
		consume := once(t, c.pool, "billing", func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
			must(t, c.insert(ctx, tx, msg))
			if err := tx.Commit(); err == nil {
				t.Error("it may commit")
			}
			return errors.New("later it fails")
		})
		if err := consume(delivered("m-1", "one")); err == nil {
			t.Error("acknowledged")
		}
		c.saw()
	})
}

// A procedure that commits leaves the receipt behind. Without the receipt the message would be
// processed again; with it no one knows whether the work is complete.
func TestMessageOfWhichAProcedureCommittedAPartIsParked(t *testing.T) {
	t.Parallel()
	c := newConsuming(t, testdb.MySQL(t))
	_, err := c.bare.Exec("CREATE PROCEDURE ends() COMMIT")
	must(t, err)
	consume := once(t, c.pool, "billing", func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
		must(t, c.insert(ctx, tx, msg))
		_, err := tx.ExecContext(ctx, "CALL ends()")
		must(t, err)
		return nil
	}, bedmessage.MaxFailures(3), bedmessage.FailingFor(0))
	c.parksAtTheThird(consume)
	if c.calls != 1 {
		t.Errorf("the handler ran %d times", c.calls)
	}
	c.saw("one")
}

// A subscriber with too short a timeout cancels the handler each time.
func TestMessageThatIsCanceledAgainIsWarnedOf(t *testing.T) {
	t.Parallel()
	logger, hook := test.NewNullLogger()
	c := newConsuming(t, testdb.SQLite(t), func(cfg *bedsql.Config) { cfg.Logger = logger })
	consume := once(t, c.pool, "billing", func(ctx context.Context, _ *sql.Tx, _ *message.Message) error {
		<-ctx.Done()
		return ctx.Err()
	})
	for n, want := range []int{0, 1, 2} {
		msg := delivered("m-1", "secret")
		ctx, cancel := context.WithCancel(t.Context())
		msg.SetContext(ctx)
		time.AfterFunc(50*time.Millisecond, cancel)
		if err := consume(msg); err == nil {
			t.Error("acknowledged")
		}
		warned := 0
		for _, e := range hook.AllEntries() {
			if line, _ := e.String(); e.Data["message"] == "m-1" && e.Data["consumer"] == "billing" && !strings.Contains(line, "secret") {
				warned++
			}
		}
		if warned != want {
			t.Errorf("canceled %d times: %d warnings, want %d", n+1, warned, want)
		}
	}
}

// Watermill's Retry calls again with the same message after Publish has replaced its UUID.
func TestHandlerThatForwardsItsMessageProcessesItOnce(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, c *consuming) {
		b := &memory{}
		p := newPublisher(t, b, bedsql.Config{Storage: c.storage, NoSyncRetry: true})
		consume := once(t, c.pool, "billing", func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
			must(t, c.insert(ctx, tx, msg))
			return p.Publish(ctx, "billed", msg)
		})
		msg := delivered("m-1", "one")
		must(t, consume(msg))
		must(t, consume(msg)) // as after an acknowledgement that was lost
		c.saw("one")
		if got := b.payloads(); !slices.Equal(got, []string{"one"}) {
			t.Errorf("forwarded: %v", got)
		}
	})
}

func TestHandlerThatOutlastsItsDeadlineIsParked(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct{ canceled, says bool }{
		"and says so":             {false, true},
		"and does not notice":     {false, false},
		"not if canceled":         {true, true}, // it is not the message's fault
		"not if it was cut short": {true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db testdb.DB) {
				c := newConsuming(t, db, func(cfg *bedsql.Config) { cfg.LogTimeout = time.Minute })
				var cancel func()
				must(t, once(t, c.pool, "warm", func(context.Context, *sql.Tx, *message.Message) error { return nil })(delivered("m-0", "")))
				consume := once(t, c.pool, "billing", func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
					if err := c.insert(ctx, tx, msg); err != nil {
						return err
					}
					if of.canceled {
						cancel()
					}
					<-ctx.Done()
					if of.says {
						return ctx.Err()
					}
					return nil
				}, bedmessage.MaxFailures(2), bedmessage.FailingFor(0))
				acknowledged := 0
				for tries := 0; acknowledged == 0 && c.calls < 4 && tries < 10; tries++ {
					msg := delivered("m-1", "one")
					var ctx context.Context
					if ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second); of.canceled {
						ctx, cancel = context.WithCancel(t.Context())
					}
					msg.SetContext(ctx)
					if consume(msg) == nil {
						acknowledged++
					}
					cancel()
				}
				c.saw()
				left := waiting(t, c.storage)
				if of.canceled && acknowledged+len(left) != 0 || !of.canceled && (c.calls != 2 || len(left) != 1 || !left[0].Parked) {
					t.Errorf("after %d calls, acknowledged: %d, in the log: %d", c.calls, acknowledged, len(left))
				}
			})
		})
	}
}

func TestMessageIsParkedAsItArrived(t *testing.T) {
	t.Parallel()
	c := newConsuming(t, testdb.SQLite(t))
	consume := once(t, c.pool, "billing", func(_ context.Context, _ *sql.Tx, msg *message.Message) error {
		msg.Payload[0] = 'O'
		msg.Payload = append(msg.Payload, " decrypted"...)
		msg.Metadata.Set("tenant", "b")
		return errors.New("broken")
	}, bedmessage.MaxFailures(2), bedmessage.FailingFor(0), bedmessage.ParkedFor("events", "orders"))
	msg := text("one")
	msg.UUID = "m-1"
	if err := consume(msg); err == nil {
		t.Error("acknowledged before it was parked")
	}
	must(t, consume(msg))
	left := waiting(t, c.storage)
	if len(left) != 1 {
		t.Fatalf("the log: %+v", left)
	}
	must(t, c.storage.Retry(t.Context(), left[0].ID))
	b := &memory{}
	round(t, c.storage, b)
	if len(b.messages) != 1 || string(b.messages[0].Payload) != "one" || b.messages[0].Metadata.Get("tenant") != "a" {
		t.Errorf("published again: %+v", b.messages)
	}
}

// unreleasing is a log that fails between the writing and the parking of an entry.
type unreleasing struct {
	txlog.Storage
	fails bool
	// doubts means that the entry is written, and the answer is lost.
	doubts bool
}

func (s *unreleasing) Add(ctx context.Context, lease time.Duration, units ...*entry.Unit) error {
	err := s.Storage.Add(ctx, lease, units...)
	if s.doubts {
		err = errors.Join(err, txlog.ErrInDoubt)
	}
	return err
}

func (s *unreleasing) Release(ctx context.Context, u *entry.Unit, v entry.Verdict) error {
	if s.fails {
		return errors.New("the log is away")
	}
	return s.Storage.Release(ctx, u, v)
}

// An entry that is not parked would be published again without an operator's decision.
func TestMessageThatCouldNotBeParkedLeavesNoEntry(t *testing.T) {
	t.Parallel()
	for _, log := range []*unreleasing{{fails: true}, {doubts: true}} {
		c := newConsuming(t, testdb.SQLite(t), func(cfg *bedsql.Config) {
			log.Storage = cfg.Storage
			cfg.Storage = log
		})
		consume := once(t, c.pool, "billing", func(context.Context, *sql.Tx, *message.Message) error { return errors.New("broken") }, bedmessage.MaxFailures(1))
		if err := consume(delivered("m-1", "one")); err == nil || len(waiting(t, c.storage)) != 0 {
			t.Errorf("not parked: %v, the log: %+v", err, waiting(t, c.storage))
		}
		log.fails, log.doubts = false, false
		must(t, consume(delivered("m-1", "one")))
		if left := waiting(t, c.storage); len(left) != 1 || !left[0].Parked {
			t.Errorf("the log: %+v", left)
		}
	}
}

func TestPoisonMessageIsParkedAndPublishedAgainByAnOperator(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		c := newConsuming(t, db)
		broken := true
		consume := once(t, c.pool, "billing", func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
			if broken {
				return errors.New("no such article")
			}
			return c.insert(ctx, tx, msg)
		}, bedmessage.MaxFailures(3), bedmessage.FailingFor(0), bedmessage.ParkedFor("events", "orders"))
		left := c.parksAtTheThird(consume)
		if left[0].DataSource != "events" || left[0].Statements[0].SQL != "PUBLISH orders" || !strings.Contains(left[0].LastError, "no such article") {
			t.Fatalf("the log: %+v", left)
		}
		none := delivered("", "none") // it could not be known a second time
		none.Metadata.Set("trace", "\xff")
		must(t, consume(none))
		if left := waiting(t, c.storage); len(left) != 2 || !left[1].Parked {
			t.Errorf("a message without a UUID: %+v", left)
		}
		broken = false
		must(t, c.storage.Retry(t.Context(), left[0].ID))
		b := &memory{}
		round(t, c.storage, b)
		if len(b.messages) != 1 || b.topics[0] != "orders" || b.messages[0].UUID != "m-1" {
			t.Fatalf("published again: %v in %v", b.messages, b.topics)
		}
		must(t, consume(delivered(b.messages[0].UUID, string(b.messages[0].Payload))))
		must(t, consume(delivered("m-1", "one")))
		c.saw("one")
	})
}

// The handler finds nothing wrong, but its work can never be committed.
func TestMessageWhoseCommitIsRefusedIsParked(t *testing.T) {
	t.Parallel()
	for name, does := range map[string]func(ctx context.Context, tx *sql.Tx){
		"required rows": func(ctx context.Context, tx *sql.Tx) {
			_, _ = tx.ExecContext(bedsql.RequireRows(ctx, 1), "UPDATE seen SET payload = 'x' WHERE payload = 'nobody'")
		},
		"rolled back": func(_ context.Context, tx *sql.Tx) { _ = tx.Rollback() },
		"statement":   func(ctx context.Context, tx *sql.Tx) { _, _ = tx.ExecContext(ctx, "UPDATE nowhere SET n = 1") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db testdb.DB) {
				if name == "statement" && db.Driver != testdb.DriverPostgres {
					return // the others' transactions go on after it
				}
				c := newConsuming(t, db)
				consume := once(t, c.pool, "billing", func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
					does(ctx, tx)
					return nil
				}, bedmessage.MaxFailures(3), bedmessage.FailingFor(0))
				c.parksAtTheThird(consume)
			})
		})
	}
}

func TestConsumerThatCouldProcessTwiceDoesNotBegin(t *testing.T) {
	t.Parallel()
	c := newConsuming(t, testdb.SQLite(t), func(cfg *bedsql.Config) { cfg.KeyRetention = time.Hour })
	for name, begin := range map[string]func() (message.NoPublishHandlerFunc, error){
		"a bare database": func() (message.NoPublishHandlerFunc, error) { return bedmessage.Once(c.bare, "billing", c.insert) },
		"no database":     func() (message.NoPublishHandlerFunc, error) { return bedmessage.Once(nil, "billing", c.insert) },
		"no name":         func() (message.NoPublishHandlerFunc, error) { return bedmessage.Once(c.pool, "", c.insert) },
		"too short memory": func() (message.NoPublishHandlerFunc, error) {
			return bedmessage.Once(c.pool, "billing", c.insert, bedmessage.Redelivery(time.Hour))
		},
		"never parks": func() (message.NoPublishHandlerFunc, error) {
			return bedmessage.Once(c.pool, "billing", c.insert, bedmessage.MaxFailures(0))
		},
		"nobody to process": func() (message.NoPublishHandlerFunc, error) { return bedmessage.Once(c.pool, "billing", nil) },
	} {
		if consume, err := begin(); err == nil || consume != nil {
			t.Errorf("%s: no error", name)
		}
	}
	must(t, once(t, c.pool, "billing", c.insert, bedmessage.Redelivery(time.Hour-1))(delivered("m-1", "one")))
	c.saw("one")
}

// once begins a consumer.
func once(t *testing.T, db *sql.DB, consumer string, h bedmessage.Handler, opts ...bedmessage.Option) message.NoPublishHandlerFunc {
	t.Helper()
	consume, err := bedmessage.Once(db, consumer, h, opts...)
	must(t, err)
	return consume
}

// An error unrelated to the message does not count, however often it comes.
func TestTroubleOfAnotherParksNoMessage(t *testing.T) {
	t.Parallel()
	pending := &bedsql.PendingError{EntryID: "e", DataSource: "stock", Cause: errors.New("down")}
	for name, err := range map[string]error{
		"pending":     fmt.Errorf("stock: %w", pending),
		"not logged":  &bedsql.NotLoggedError{DataSource: "stock", Cause: errors.New("down")},
		"unreachable": fmt.Errorf("prices: %w", &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}),
		"lost":        driver.ErrBadConn,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConsuming(t, testdb.SQLite(t))
			consume := once(t, c.pool, "billing", func(context.Context, *sql.Tx, *message.Message) error { return err }, bedmessage.MaxFailures(1))
			for range 3 {
				if got := consume(delivered("m-1", "one")); !errors.Is(got, err) {
					t.Errorf("it says %v", got)
				}
			}
			if left := waiting(t, c.storage); len(left) != 0 {
				t.Errorf("the log: %+v", left)
			}
		})
	}
}

func TestLocksAndKilledSessionsParkNoMessage(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, c *consuming) {
		_, err := c.bare.Exec("CREATE TABLE busy (n INT PRIMARY KEY)")
		must(t, err)
		_, err = c.bare.Exec("INSERT INTO busy VALUES (1)")
		must(t, err)
		lock, err := c.bare.Begin()
		must(t, err)
		defer func() { _ = lock.Rollback() }()
		var n int
		must(t, lock.QueryRow("SELECT n FROM busy WHERE n = 1 FOR UPDATE").Scan(&n))
		consume := once(t, c.pool, "locked", func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
			return tx.QueryRowContext(ctx, "SELECT n FROM busy WHERE n = 1 FOR UPDATE NOWAIT").Scan(&n)
		}, bedmessage.MaxFailures(1))
		for range 10 {
			if err := consume(delivered("m-1", "one")); err == nil {
				t.Error("acknowledged")
			}
		}
		kill := testdb.By[[2]string]{MySQL: [2]string{"SELECT CONNECTION_ID()", "KILL %d"}, Postgres: [2]string{"SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%d)"}, SQLite: [2]string{}}.For(c.db.Driver)
		killed := once(t, c.pool, "killed", func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
			var id int64
			must(t, tx.QueryRowContext(ctx, kill[0]).Scan(&id))
			_, err := c.bare.Exec(fmt.Sprintf(kill[1], id))
			must(t, err)
			return c.insert(ctx, tx, msg)
		}, bedmessage.MaxFailures(1))
		for range 2 {
			if err := killed(delivered("m-1", "one")); err == nil {
				t.Error("acknowledged")
			}
		}
		if left := waiting(t, c.storage); len(left) != 0 {
			t.Errorf("the log: %+v", left)
		}
	})
}

func TestFailureHasToLastBeforeItsMessageIsParked(t *testing.T) {
	t.Parallel()
	c := newConsuming(t, testdb.SQLite(t))
	down := true
	consume := once(t, c.pool, "billing", func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
		if down {
			return errors.New("the mail server is down")
		}
		return c.insert(ctx, tx, msg)
	}, bedmessage.MaxFailures(2), bedmessage.FailingFor(time.Hour))
	for range 5 {
		if err := consume(delivered("m-1", "one")); err == nil {
			t.Error("parked")
		}
	}
	down = false
	must(t, consume(delivered("m-1", "one")))
	c.saw("one")
}

// Two messages with one UUID are a mistake of their publisher, and the second would be lost.
func TestAnotherMessageUnderAUUIDIsParked(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		c := newConsuming(t, db)
		older, key := bedsql.WithIdempotencyKey(t.Context(), "message\x00billing\x00m-0")
		key.SetFingerprint("message") // as versions did that did not look at the payload
		k := keyed.Request{Response: []byte("{}")}
		tx, err := c.pool.BeginTx(kept.In(older, &k), nil)
		must(t, err)
		must(t, tx.Commit())
		consume := once(t, c.pool, "billing", c.insert)
		must(t, consume(delivered("m-0", "zero")))
		must(t, consume(delivered("m-1", "one")))
		must(t, consume(delivered("m-1", "one")))
		c.saw("one")
		if left := waiting(t, c.storage); len(left) != 0 {
			t.Errorf("the log: %+v", left)
		}
		must(t, consume(delivered("m-1", "two")))
		left := waiting(t, c.storage)
		if len(left) != 1 || !left[0].Parked || !strings.Contains(left[0].LastError, "another message with its UUID") {
			t.Errorf("the log: %+v", left)
		}
		c.saw("one")
	})
}
