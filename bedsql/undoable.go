package bedsql

import (
	"context"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
)

// keeps reports whether t is the transaction of an HTTP request or of a message. t may be nil.
func (t *localTx) keeps() bool { return t != nil && t.keyed.Keeps() }

// ofRequest reports whether s is made with the transaction of a request.
func (s *SoftTransaction) ofRequest() bool {
	return s.isHome() && s.home.local.keeps()
}

// strays returns an error for a statement under a request that can be undone, if it may write and
// the request's transaction neither runs nor records it.
func (c *Conn) strays(under scope, s statement) error {
	if c.tx.keeps() {
		return nil
	}
	switch s.class.Kind {
	case sqltext.DML:
		if soft := c.stagedIn(under); soft != nil && soft.ofRequest() && soft.home.from.receipts.LogIdentity == c.c.receipts.LogIdentity {
			return nil
		}
		return ErrOutsideRequest
	case sqltext.DDL, sqltext.Multi, sqltext.Opaque:
		return ErrOutsideRequest
	case sqltext.Session:
		if executes(c.c.dialect.Flavor, s.SQL) {
			return ErrOutsideRequest
		}
	}
	return nil
}

// keepEntries notes the entries that the COMMIT of t writes, for the receipt of its request.
func (t *localTx) keepEntries() {
	if !t.keeps() {
		return
	}
	t.keyed.Kept.Entries = nil
	for _, h := range t.homes {
		for _, u := range h.units {
			t.keyed.Kept.Entries = append(t.keyed.Kept.Entries, u.unit.ID)
		}
	}
}

// holds reports whether one of the entries is in the log. The open transaction looks itself if it can:
// it sees every entry of a transaction that it sees, and another connection may see less.
func (c *Conn) holds(ctx context.Context, entries []string) (bool, error) {
	if log := logdb.Of(c.c.cfg.Storage); log != nil {
		return log.Holds(ctx, visit{&c.session}, entries)
	}
	missing, err := c.c.cfg.Storage.Missing(ctx, entries)
	return len(missing) < len(entries), err
}

// home identifies the receipts of c in a table with this identity.
func (c *connector) home(identity string) string {
	place := ""
	if known := c.target.Known(false); known != nil {
		place = attempt.AnySchema(known.Name)
	}
	return c.target.DataSource + "\x00" + place + "\x00" + identity
}

// identify answers kept.Home.
func (c *Conn) identify(ctx context.Context, to *string) error {
	if c.pinned != "" {
		return unusable(c.pinned)
	}
	if err := c.beginsKeyed(ctx); err != nil {
		return err
	}
	identity, err := attempt.Identity(ctx, c.c.dialect, &c.session, c.c.receipts)
	if err != nil {
		return c.lossy(attempt.Failed(c.c.dialect, err, false)).Err
	}
	*to = c.c.home(identity)
	return nil
}
