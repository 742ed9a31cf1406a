package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	bedmessage "github.com/bedsql/bed/bedsql/message"
)

// The rows, one table for each type.
type (
	order struct {
		ID      string `gorm:"primaryKey;size:36" json:"id"`
		Article string `gorm:"size:40" json:"article"`
		N       int64  `json:"n"`
		Status  string `gorm:"size:10" json:"status"`
		Version int64  `json:"version"`
		Note    string `gorm:"size:200" json:"note"`
		GroupID string `gorm:"size:36" json:"-"` // the soft transaction that places it
	}
	debt struct { // what is owed for an order; due once it is shipped
		OrderID string `gorm:"primaryKey;size:36"`
		Cents   int64
		Due     bool
	}
	bill struct { // written by the consumer of events
		OrderID string `gorm:"primaryKey;size:36"`
	}
	article struct { // how many there are in stock
		Name string `gorm:"primaryKey;size:40"`
		N    int64
	}
)

// The states of an order, and the prices of the articles.
const (
	placed    = "placed" // then shipped, or cancelled
	shipped   = "shipped"
	cancelled = "cancelled"

	cents = 100
)

// place writes an order, its debt and its use of the stock, in three databases. If there is too
// little in stock, at once or later, all of it is compensated: the order is cancelled. place
// checks each write before the next, and stops after an error.
func (x *shop) place(request context.Context, o *order) error {
	ctx, soft, err := x.begin(request)
	if err != nil {
		return err
	}
	undo := soft.Compensation(ctx)
	orders := x.orders.WithContext(ctx)
	if x.atHome {
		orders = within(x.orders, ctx, bedhttp.Tx(request))
	}
	owed := &debt{OrderID: o.ID, Cents: cents * o.N}
	o.Status, o.Version, o.GroupID = placed, 1, soft.ID()
	for _, write := range []func() *gorm.DB{
		func() *gorm.DB { return orders.Create(o) },
		func() *gorm.DB {
			return x.orders.WithContext(undo).Model(&order{ID: o.ID}).Where("status = ?", placed).Update("status", cancelled)
		},
		func() *gorm.DB { return x.ledger.WithContext(ctx).Create(owed) },
		func() *gorm.DB { return x.ledger.WithContext(undo).Delete(owed) },
		func() *gorm.DB {
			return x.stock.WithContext(bedsql.RequireRows(ctx, 1)).Exec("UPDATE articles SET n = n - ? WHERE name = ? AND n >= ?", o.N, o.Article, o.N)
		},
		func() *gorm.DB {
			return x.stock.WithContext(undo).Exec("UPDATE articles SET n = n + ? WHERE name = ?", o.N, o.Article)
		},
	} {
		if err := write().Error; err != nil {
			return err
		}
	}
	err = x.end(ctx, soft)
	var short *bedsql.RowsError
	if bedsql.OutcomeOf(err) != bedsql.OutcomeCompensated || !errors.As(err, &short) {
		return err
	}
	o.Status = cancelled // also if all was undone before the order itself was written
	return x.orders.WithContext(request).Clauses(clause.OnConflict{UpdateAll: true}).Create(o).Error
}

// ship is a step of the order's state machine. It is one conditional UPDATE, which also checks the
// client's version. The debt becomes due, and an event announces it. At home all of that commits
// at once. On SQLite the state commits first. After a crash before the rest is logged, or with the
// log down, only a request sent again under its key bills the order.
func (x *shop) ship(ctx context.Context, id string, version int64) error {
	var o order
	if err := x.orders.WithContext(ctx).First(&o, "id = ?", id).Error; err != nil {
		return err
	}
	// An order is not shipped while it may still be cancelled. The log forgets the end of the group
	// after a week.
	switch state, err := bedsql.Status(ctx, x.storage, o.GroupID); {
	case err != nil || state == bedsql.StateWaiting || state == bedsql.StateParked:
		return errAgain
	case state == bedsql.StateDiscarded: // it was compensated
		return &bedsql.RowsError{}
	}
	switch err := x.change(ctx, id, version, map[string]any{"status": shipped}); {
	case bedsql.OutcomeOf(err) == bedsql.OutcomeAccepted:
		return errAgain // sent again under its key it goes on from here
	case err != nil:
		return err
	}
	ctx, soft, err := x.begin(ctx)
	if err != nil {
		return err
	}
	due := x.ledger.WithContext(bedsql.RequireRows(ctx, 1)).Model(&debt{OrderID: id}).Update("due", true)
	if due.Error != nil {
		return due.Error
	}
	if err := x.events.Publish(ctx, x.topic, message.NewMessage("", []byte(id))); err != nil {
		return err
	}
	return x.end(ctx, soft)
}

// change changes a placed order if the caller has seen its newest version. Otherwise it returns a
// *bedsql.RowsError.
func (x *shop) change(ctx context.Context, id string, version int64, to map[string]any) error {
	ctx = bedsql.RequireRows(ctx, 1)
	orders := x.orders.WithContext(ctx) // under the request's key: applied once, also if sent again
	if x.atHome {
		orders = within(x.orders, ctx, bedhttp.Tx(ctx))
	}
	to["version"] = version + 1
	return orders.Model(&order{ID: id}).Where("status = ? AND version = ?", placed, version).Updates(to).Error
}

// errAgain asks the client to send the request again.
var errAgain = errors.New("the outcome of the order is not known yet")

// begin begins a group of writes in several databases, for a request behind bedhttp. At home it
// uses the request's own transaction, whose COMMIT writes the order, the response and the entries
// for the other databases at once. A staged group leaves the request's key behind, because a group
// under a key can neither be compensated nor publish.
func (x *shop) begin(request context.Context) (context.Context, *bedsql.SoftTransaction, error) {
	if x.atHome {
		return bedsql.Begin(request, bedsql.WithTx(bedhttp.Tx(request)))
	}
	return bedsql.Begin(context.Background(), bedsql.Staged())
}

// end logs a staged group and delivers it. Without end, a staged group does nothing. At home
// bedhttp ends the group after the commit of its transaction.
func (x *shop) end(ctx context.Context, soft *bedsql.SoftTransaction) error {
	if x.atHome {
		return nil
	}
	return soft.End(ctx)
}

// within is gorm in a transaction begun without it.
func within(db *gorm.DB, ctx context.Context, tx *sql.Tx) *gorm.DB {
	db = db.WithContext(ctx)
	db.Statement.ConnPool = tx
	return db
}

// bill writes the bill of a shipped order, in the transaction with the receipt of the event.
func (x *shop) bill(ctx context.Context, tx *sql.Tx, event *message.Message) error {
	return within(x.ledger, ctx, tx).Clauses(clause.OnConflict{DoNothing: true}).Create(&bill{OrderID: string(event.Payload)}).Error
}

// consume processes each event once, until ctx is done. It recognizes a duplicate by its UUID.
func (x *shop) consume(ctx context.Context, handle bedmessage.Handler) error {
	ledger, err := x.ledger.DB()
	if err != nil {
		return err
	}
	once, err := bedmessage.Once(ledger, "billing", handle, bedmessage.ParkedFor("events", x.topic), bedmessage.Redelivery(eventsLast))
	if err != nil {
		return err
	}
	messages, err := x.subscriber.Subscribe(ctx, x.topic)
	if err != nil {
		return err
	}
	go func() {
		for msg := range messages {
			if err := once(msg); err != nil {
				msg.Nack() // the broker delivers it again
				continue
			}
			msg.Ack()
			x.acknowledged.Add(1)
		}
	}()
	return nil
}
