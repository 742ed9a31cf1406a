package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/ThreeDotsLabs/watermill/message"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/bedsql/call"
	bedmessage "github.com/bedsql/bed/bedsql/message"
)

// The rows of the orders service, one table for each type.
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
	bill struct { // written by the consumer of events
		OrderID string `gorm:"primaryKey;size:36"`
	}
)

// The states of an order, and the price of each article.
const (
	placed    = "placed" // then shipped, or cancelled
	shipped   = "shipped"
	cancelled = "cancelled"

	cents = 100
)

// place writes an order and calls the other services. Each step has a compensation: release, refund,
// and the cancellation of the order. They run if a service refuses, at once or later. place stops
// after an error, and nothing is sent.
func (x *orders) place(request context.Context, o *order) error {
	ctx, soft, err := x.begin(request)
	if err != nil {
		return err
	}
	undo := soft.Compensation(ctx)
	rows := x.rows.WithContext(ctx)
	if x.atHome {
		rows = within(x.rows, ctx, bedhttp.Tx(request))
	}
	o.Status, o.Version, o.GroupID = placed, 1, soft.ID()
	reserved := reservation{OrderID: o.ID, Article: o.Article, N: o.N}
	charged := charge{OrderID: o.ID, Cents: cents * o.N}
	for _, step := range []func() error{
		func() error { return rows.Create(o).Error },
		func() error {
			return x.rows.WithContext(undo).Model(&order{ID: o.ID}).Where("status = ?", placed).Update("status", cancelled).Error
		},
		func() error { return send(ctx, x.stock, "/reservations", reserved) },
		func() error { return send(undo, x.stock, "/releases", reserved) },
		func() error { return send(ctx, x.payments, "/charges", charged) },
		func() error { return send(undo, x.payments, "/refunds", charged) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if err = x.end(ctx, soft); bedsql.OutcomeOf(err) != bedsql.OutcomeCompensated {
		return err
	}
	o.Status = cancelled // also if all was undone before the order itself was written
	return x.rows.WithContext(request).Clauses(clause.OnConflict{UpdateAll: true}).Create(o).Error
}

// send records a call, which end sends.
func send(ctx context.Context, to *call.Service, path string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r, err := http.NewRequest(http.MethodPost, path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	_, err = to.Send(ctx, r)
	return err
}

// ship is a step of the order's state machine. It is one conditional UPDATE, which also checks the
// client's version. An event announces it. At home both commit at once. On SQLite the state commits
// first. After a crash before the event is logged, or with the log down, only a request sent again
// under its key bills the order.
func (x *orders) ship(ctx context.Context, id string, version int64) error {
	var o order
	if err := x.rows.WithContext(ctx).First(&o, "id = ?", id).Error; err != nil {
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
	if err := x.events.Publish(ctx, x.topic, message.NewMessage("", []byte(id))); err != nil {
		return err
	}
	return x.end(ctx, soft)
}

// change changes a placed order if the caller has seen its newest version. Otherwise it returns a
// *bedsql.RowsError.
func (x *orders) change(ctx context.Context, id string, version int64, to map[string]any) error {
	ctx = bedsql.RequireRows(ctx, 1)
	rows := x.rows.WithContext(ctx) // under the request's key: applied once, also if sent again
	if x.atHome {
		rows = within(x.rows, ctx, bedhttp.Tx(ctx))
	}
	to["version"] = version + 1
	return rows.Model(&order{ID: id}).Where("status = ? AND version = ?", placed, version).Updates(to).Error
}

// errAgain asks the client to send the request again.
var errAgain = errors.New("the outcome of the order is not known yet")

// begin begins a group of writes and calls, for a request behind bedhttp. At home it uses the
// request's own transaction, whose COMMIT writes the order, the response and the entries of the calls
// at once. A staged group leaves the request's key behind, because a group
// under a key can neither be compensated nor publish.
func (x *orders) begin(request context.Context) (context.Context, *bedsql.SoftTransaction, error) {
	if x.atHome {
		return bedsql.Begin(request, bedsql.WithTx(bedhttp.Tx(request)))
	}
	return bedsql.Begin(context.Background(), bedsql.Staged())
}

// end logs a staged group and delivers it. Without end, a staged group does nothing. At home
// bedhttp ends the group after the commit of its transaction.
func (x *orders) end(ctx context.Context, soft *bedsql.SoftTransaction) error {
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
func (x *orders) bill(ctx context.Context, tx *sql.Tx, event *message.Message) error {
	return within(x.rows, ctx, tx).Clauses(clause.OnConflict{DoNothing: true}).Create(&bill{OrderID: string(event.Payload)}).Error
}

// consume processes each event once, until ctx is done. It recognizes a duplicate by its UUID.
func (x *orders) consume(ctx context.Context, handle bedmessage.Handler) error {
	pool, err := x.rows.DB()
	if err != nil {
		return err
	}
	once, err := bedmessage.Once(pool, "billing", handle, bedmessage.ParkedFor("events", x.topic), bedmessage.Redelivery(eventsLast))
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
