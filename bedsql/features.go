package bedsql

import (
	"context"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/keyed"
	"github.com/bedsql/bed/internal/order"
)

// features are what few contexts ask for. A write under a context without them enters no file that
// serves them.
type features struct {
	// undo means that the writes are recorded as compensations of the parts of a soft transaction.
	undo bool
	key  *keyed.Key
	// order is their order key, if they are ordered.
	order   string
	ordered bool
	// met is set for the query by which WithTx meets the connection of its transaction.
	met *home
	// id is the message's or call's, and its entry's.
	id string
	// called is the write of a call under its key, receiptKey its receipt at the service.
	called     *keyed.Write
	receiptKey string
	// confined is set under a request that can be undone.
	confined bool
}

// asked attends to the query of WithTx, and to a compensation. done is false if the statement goes
// on.
func (c *Conn) asked(ctx context.Context, under scope, s statement) (r attempt.Reply, err error, done bool) {
	if under.met != nil && c.tx != nil {
		return attempt.Reply{Rows: new(attempt.Rows)}, c.tx.meets(ctx, under.met), true
	}
	if under.undo {
		err = undoes(under.soft, under, c, s)
	}
	if under.confined && err == nil {
		err = c.strays(under, s)
	}
	return r, err, err != nil
}

// submit is Conn.submit for a write with features.
func (under scope) submit(ctx context.Context, c *Conn, s statement) (r attempt.Reply, err error) {
	to := besteffort.Delivery(c.c.deliverer)
	if under.ordered {
		turn := order.Turn{Deliverer: c.c.deliverer, Wait: c.c.cfg.OrderWait}
		if turn.Key, err = orderKey(c.c, under); err != nil {
			return r, err
		}
		to = turn
	}
	w := under.called
	switch {
	case w != nil:
	case under.key == nil:
		return c.submit(ctx, under, s, to)
	default:
		if w, err = under.key.Take(c.c.keys); err != nil {
			return r, err
		}
	}
	w.To = to
	if r, err = c.submit(ctx, under, s, w); !w.Sent {
		w.Back()
	}
	return r, err
}

// deliverer delivers the unit of t at its COMMIT.
func (t *localTx) deliverer() (to besteffort.Delivery) {
	to = t.c.c.deliverer
	if len(t.order) > 0 {
		to = order.Turn{Deliverer: t.c.c.deliverer} // it has seen what was before its turn, and holds locks: it does not wait
	}
	if t.keyed != nil {
		t.keyed.To, to = to, t.keyed
	}
	return to
}

// exactlyOnce reports whether a write in s leaves a receipt.
func (s scope) exactlyOnce(cfg *Config) bool {
	if s.id != "" { // a message or a call
		return false
	}
	g := cfg.Guarantee
	if s.withGuarantee {
		g = s.guarantee
	}
	return g == ExactlyOnce || s.key != nil || s.ordered
}
