package message_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/ThreeDotsLabs/watermill"
	wm "github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/message"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/txlog"
)

func Example() {
	ctx := context.Background()
	bills, storage, closing := billing(ctx)
	defer closing()
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}) // or any other of watermill's
	arriving, err := broker.Subscribe(ctx, "orders")
	check(err)

	publisher, err := message.NewPublisher(broker, "events", bedsql.Config{Storage: storage}, message.Confirms())
	check(err)
	defer publisher.Close()
	check(publisher.Publish(ctx, "orders", wm.NewMessage("", []byte("o-1"))))

	consume, err := message.Once(bills, "billing", func(ctx context.Context, tx *sql.Tx, msg *wm.Message) error {
		fmt.Println("billing", string(msg.Payload))
		_, err := tx.ExecContext(ctx, `INSERT INTO bill VALUES (?)`, string(msg.Payload))
		return err
	})
	check(err)
	msg := <-arriving
	check(consume(msg))
	check(consume(msg)) // as when the acknowledgement was lost
	msg.Ack()

	var n int
	check(bills.QueryRowContext(ctx, `SELECT COUNT(*) FROM bill`).Scan(&n))
	fmt.Println("bills:", n)
	// Output:
	// billing o-1
	// bills: 1
}

// billing opens a database by bed, and a log.
func billing(ctx context.Context) (bills *sql.DB, storage txlog.Storage, closing func()) {
	dir, err := os.MkdirTemp("", "bed-example")
	check(err)
	storage, err = txlog.Open(ctx, "sqlite", "file:"+dir+"/log.db")
	check(err)
	check(sqlite.Register("bed-example-message", bedsql.Config{Storage: storage}))
	bills, err = sql.Open("bed-example-message", "file:"+dir+"/bills.db?bedDataSource=bills")
	check(err)
	_, err = bills.ExecContext(ctx, `CREATE TABLE bill (order_id TEXT NOT NULL)`)
	check(err)
	return bills, storage, func() {
		_ = bills.Close()
		_ = storage.Close()
		_ = os.RemoveAll(dir)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A message is logged before it is published. While the broker is down, Publish returns
// ErrPending, and the job publishes it.
func ExampleNewPublisher() {
	ctx := context.Background()
	storage := txlog.NewMemory()
	defer storage.Close()
	broker := &outage{}
	publisher, err := message.NewPublisher(broker, "events", bedsql.Config{Storage: storage, NoSyncRetry: true}, message.Confirms())
	check(err)
	defer publisher.Close()

	err = publisher.Publish(ctx, "orders", wm.NewMessage("", []byte("o-1")))
	fmt.Println(bedsql.OutcomeOf(err))
	broker.down = true
	err = publisher.Publish(ctx, "orders", wm.NewMessage("", []byte("o-2")))
	fmt.Println(bedsql.OutcomeOf(err))
	waiting, err := storage.List(ctx, txlog.Filter{})
	check(err)
	fmt.Println("published:", broker.published, "in the log:", len(waiting))
	// Output:
	// delivered
	// accepted
	// published: 1 in the log: 1
}

// outage is a broker that may be down.
type outage struct {
	down      bool
	published int
}

func (o *outage) Publish(string, ...*wm.Message) error {
	if o.down {
		return errors.New("the broker is down")
	}
	o.published++
	return nil
}

func (o *outage) Close() error { return nil }
