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

// The states of an order, and what each article costs.
const (
	placed    = "placed" // then shipped, or cancelled
	shipped   = "shipped"
	cancelled = "cancelled"

	cents = 100
)

// place writes an order, what is owed for it and what it takes from the stock, in three
// databases. If there is too little in stock, whenever that turns out, all of it is undone:
// the order is cancelled. Each write is checked before the next: after an error none follows.
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

// ship is a step of the order's state machine: one conditional UPDATE, which also checks that
// the caller has seen the newest version. What is owed becomes due, and an event says so. At
// home all of that commits at once. On SQLite the state commits first: if the process ends
// before the rest is logged, or the log is down, the order is billed when the client sends the
// request again under its key, and not if it never does.
func (x *shop) ship(ctx context.Context, id string, version int64) error {
	var o order
	if err := x.orders.WithContext(ctx).First(&o, "id = ?", id).Error; err != nil {
		return err
	}
	// An order that may still be cancelled is not shipped.
	// The log forgets after a week that the group was delivered.
	if state, err := bedsql.Status(ctx, x.storage, o.GroupID); err != nil || state != bedsql.StateDelivered && state != bedsql.StateUnknown {
		return errAgain
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

// change changes an order that is placed, and is still of the version that the caller has
// seen. *bedsql.RowsError: it is not.
func (x *shop) change(ctx context.Context, id string, version int64, to map[string]any) error {
	ctx = bedsql.RequireRows(ctx, 1)
	orders := x.orders.WithContext(ctx) // under the request's key: applied once, also if sent again
	if x.atHome {
		orders = within(x.orders, ctx, bedhttp.Tx(ctx))
	}
	to["version"] = version + 1
	return orders.Model(&order{ID: id}).Where("status = ? AND version = ?", placed, version).Updates(to).Error
}

// errAgain is for a client that sends the request again.
var errAgain = errors.New("the outcome of the order is not known yet")

// begin begins a group of writes in several databases, for a request that bedhttp handles.
// At home it is made with the request's own transaction, which then commits the order, the
// response and what is to be done elsewhere at once. A staged group leaves the request's key
// behind: under a key nothing can be undone or published.
func (x *shop) begin(request context.Context) (context.Context, *bedsql.SoftTransaction, error) {
	if x.atHome {
		return bedsql.Begin(request, bedsql.WithTx(bedhttp.Tx(request)))
	}
	return bedsql.Begin(context.Background(), bedsql.Staged())
}

// end logs a staged group, and delivers it: one that does not come here does nothing. At home
// bedhttp ends the group, when it has committed its transaction.
func (x *shop) end(ctx context.Context, soft *bedsql.SoftTransaction) error {
	if x.atHome {
		return nil
	}
	return soft.End(ctx)
}

// within is gorm in a transaction that was begun without it.
func within(db *gorm.DB, ctx context.Context, tx *sql.Tx) *gorm.DB {
	db = db.WithContext(ctx)
	db.Statement.ConnPool = tx
	return db
}

// bill writes the bill of an order that was shipped, in the transaction that keeps the
// receipt of the event.
func (x *shop) bill(ctx context.Context, tx *sql.Tx, event *message.Message) error {
	return within(x.ledger, ctx, tx).Clauses(clause.OnConflict{DoNothing: true}).Create(&bill{OrderID: string(event.Payload)}).Error
}

// consume has each event processed once, until ctx is done: one that comes again is known by
// its UUID.
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
