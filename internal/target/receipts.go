package target

import (
	"context"
	"database/sql/driver"
	"errors"
	"sync/atomic"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
)

// Log is the part of a txlog.Storage for the places of receipts.
type Log interface {
	ReceiptSchema(ctx context.Context, dataSource string) (schema string, known bool, err error)
	SetReceiptSchema(ctx context.Context, dataSource, schema string) error
	Locate(ctx context.Context, u *entry.Unit, place, session string) error
}

// Source is a data source, reached with one set of settings. It is safe for concurrent use.
type Source struct {
	delivery.Target
	// Receipts configures its receipts.
	Receipts attempt.Receipts
	// Log remembers where they are.
	Log Log
	// LogTimeout bounds the wait for the log, if an application waits; 0 for the job. The
	// application's write need not wait for a silent log: see Find.
	LogTimeout time.Duration
	// Named means that its units keep settings of their own (bedsql.Config.SessionSettings). Roams
	// means that these change the lookup of unqualified names.
	Named, Roams bool

	place atomic.Pointer[Place]
}

// Place is the place of a table of receipts.
type Place struct {
	// Name is attempt.ReceiptPlace; empty if the session leads nowhere, or the server did not tell.
	Name string
	// assumed means that the log did not confirm this place for the data source's receipts.
	assumed bool
}

// New returns the source of a target. Its receipts are in the target's ReceiptSchema. logTimeout is
// LogTimeout.
func New(t delivery.Target, r attempt.Receipts, log Log, logTimeout time.Duration) *Source {
	r.Schema = t.ReceiptSchema
	return &Source{Target: t, Receipts: r, Log: log, LogTimeout: logTimeout}
}

// Known returns the place of the table of receipts, or nil if it is not known. For a request under
// a key, the place must be certain, because earlier requests may have left their receipts
// elsewhere.
func (s *Source) Known(certain bool) *Place {
	place := s.place.Load()
	if place != nil && place.assumed && certain {
		return nil
	}
	return place
}

// Adopt takes a place found in other sessions of the data source, unless s knows its own; nil for
// none.
func (s *Source) Adopt(place *Place) { s.place.CompareAndSwap(nil, place) }

// Find finds or creates the table of receipts, and remembers its place. If the log does not answer,
// and the DSN names no schema, an application's write without a key need not wait for the log: it
// will find its receipt in the same place again. Errors: an ElsewhereError, a LogError, a
// ReceiptTableError, a ReceiptRightsError, or the database's.
func (s *Source) Find(ctx context.Context, conn driver.Conn, certain bool) (*Place, error) {
	if s.Dialect.Peer != nil {
		return s.scope(ctx, conn)
	}
	var err error
	if s.Dialect.Flavor == sqltext.MySQL || s.Dialect.Flavor == sqltext.Postgres {
		err = s.checkSchema(ctx, conn)
	}
	assumed := s.LogTimeout > 0 && !certain && s.Receipts.Schema == "" && errors.As(err, new(*LogError))
	if err != nil && !assumed {
		return nil, err
	}
	if err := attempt.EnsureReceipts(ctx, s.Dialect, conn, s.Receipts); err != nil {
		return nil, err
	}
	name, err := attempt.ReceiptPlace(ctx, s.Dialect, conn, s.Receipts)
	if err != nil && (s.LogTimeout == 0 || !s.Dialect.Class(err).Answered()) {
		return nil, err
	}
	if s.Roams {
		name = attempt.AnySchema(name)
	}
	place := &Place{name, assumed}
	s.place.Store(place)
	return place, nil
}

// scope is Find for a service that keeps receipts itself.
func (s *Source) scope(ctx context.Context, conn driver.Conn) (*Place, error) {
	scope, err := s.Dialect.Peer.Scope(ctx, attempt.Bare(conn))
	if err != nil && dialect.AdviceOf(err).Operator {
		return nil, notUndoable(err)
	}
	if err != nil {
		return nil, err
	}
	place := &Place{Name: scope}
	s.place.Store(place)
	return place, nil
}

// At configures the receipts in the given place, which comes from an entry and may be empty.
func (s *Source) At(place string) attempt.Receipts {
	if known := s.Known(false); place == "" || known != nil && known.Name == place {
		return s.Receipts
	}
	return s.Receipts.At(place)
}

// checkSchema compares the receipts' schema with the schema in the log. If the log has no schema
// yet, it stores this one. A resent request under a key, or a job with other settings, must look in
// the same place for the receipt.
func (s *Source) checkSchema(ctx context.Context, conn driver.Conn) error {
	if s.LogTimeout > 0 { // the caller's context may never end
		bounded, cancel := context.WithTimeout(ctx, s.LogTimeout)
		defer cancel()
		ctx = bounded
	}
	has := s.Receipts.Schema
	schema, known, err := s.Log.ReceiptSchema(ctx, s.DataSource)
	if err == nil && (!known || schema == has) && has != "" {
		// An older version did not write its schema to the log.
		home, err := attempt.ReceiptHome(ctx, s.Dialect, conn)
		if err != nil {
			return err
		}
		if home != "" && home != has {
			return otherSchema(s.DataSource, has, "the table bed_receipt of "+home)
		}
	}
	if err == nil && !known {
		schema = has
		err = s.Log.SetReceiptSchema(ctx, s.DataSource, has)
		if err != nil && has == "" && dberr.Of(err).Denied() {
			return nil // a log that is set up for an older version
		}
		if err == nil { // another may have come first
			schema, _, err = s.Log.ReceiptSchema(ctx, s.DataSource)
		}
	}
	switch {
	case err != nil:
		return &LogError{"the log does not say where the receipts of " + s.DataSource + " are", false, err}
	case schema == has:
		return nil
	case schema == "":
		return otherSchema(s.DataSource, has, "no schema of their own")
	}
	return otherSchema(s.DataSource, has, "the schema "+schema)
}

// locate makes sure that an attempt of u on conn meets the receipts of earlier ones. It records the
// place in the log, because a job that looks elsewhere would not see this attempt's receipt.
func (s *Source) locate(ctx context.Context, conn driver.Conn, u *entry.Unit) error {
	certain := u.Fingerprint != ""
	place := s.Known(certain)
	if place == nil {
		var err error
		if s.Dialect.Peer == nil {
			err = SamePlace(ctx, &s.Target, conn, u) // before a table is created
		}
		if err == nil {
			place, err = s.Find(ctx, conn, certain)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case u.Place != "" && !attempt.InPlace(u.Place, place.Name):
		s.place.Store(nil) // an operator may act
		if s.Dialect.Peer != nil {
			return otherScope()
		}
		return OtherPlace(u.Place, place.Name)
	case u.Place != "" || place.Name == "", u.Undo != nil: // of a part whose place was never known nothing is applied
		return nil
	}
	if err := s.Log.Locate(ctx, u, place.Name, u.Session); err != nil {
		return unwritten("where its receipt will be", err)
	}
	return nil
}

// SamePlace returns an ElsewhereError if conn, in a session of t, does not find the place of u's
// receipt.
func SamePlace(ctx context.Context, t *delivery.Target, conn driver.Conn, u *entry.Unit) error {
	if u.Place == "" {
		return nil
	}
	if peer := t.Dialect.Peer; peer != nil {
		scope, err := peer.Scope(ctx, attempt.Bare(conn))
		if err == nil && scope != u.Place {
			return otherScope()
		}
		return err
	}
	place, err := attempt.ReceiptPlace(ctx, t.Dialect, conn, attempt.Receipts{Schema: t.ReceiptSchema})
	if err == nil && !attempt.InPlace(u.Place, place) {
		err = OtherPlace(u.Place, place)
	}
	return err
}

// Reached says how far Attempt came.
type Reached uint8

const (
	// Ran means that the attempt was made.
	Ran Reached = iota
	// Unlocated means that nothing was sent: there is no table of receipts, or not the entry's.
	Unlocated
	// Gone means that the table of receipts was known and is gone. The next attempt creates it.
	Gone
)

// Attempt has run make an attempt of u on conn, which is in u's session. If u leaves a receipt, it
// first finds or creates the table of receipts and records its place.
func (s *Source) Attempt(ctx context.Context, conn driver.Conn, u *entry.Unit, run func() attempt.Outcome) (attempt.Outcome, Reached) {
	if u.Receipt == "" {
		return run(), Ran
	}
	if err := s.locate(ctx, conn, u); err != nil {
		return s.Failed(err), Unlocated
	}
	out := run()
	if out.Err != nil {
		return s.Explain(ctx, conn, u, out)
	}
	return out, Ran
}

// Explain completes the outcome of an attempt of u: the error then tells which table or right on it
// is missing.
func (s *Source) Explain(ctx context.Context, conn driver.Conn, u *entry.Unit, out attempt.Outcome) (attempt.Outcome, Reached) {
	switch {
	case u.Receipt == "" || out.Err == nil:
	case attempt.NoReceipts(s.Dialect, s.Receipts, out.Err):
		s.place.Store(nil)
		out.Err, out.Class = attempt.NoReceiptTable(s.Dialect, s.Receipts, out.Err), dialect.Retryable
		return out, Gone
	default:
		out.Err = attempt.ReceiptRights(ctx, s.Dialect, conn, s.Receipts, out.Err)
	}
	return out, Ran
}

// Failed returns the outcome of an attempt that ended before anything was sent.
func (s *Source) Failed(err error) attempt.Outcome {
	out := attempt.Failed(s.Dialect, err, true)
	if errors.As(err, new(*LogError)) {
		out.ConnLost = false
	}
	return out
}

// Unusable reports whether the table of receipts, or a right on it, is missing. It returns the
// statement for an operator. describe returns a text for the database's error, without values.
func Unusable(err error, describe func(error) string) (said string, ok bool) {
	var table *dialect.ReceiptTableError
	var rights *dialect.ReceiptRightsError
	switch {
	case errors.As(err, &rights):
		return "missing rights (" + describe(rights.Err) + "); have run: " + rights.Grant, true
	case errors.As(err, &table):
		return "no usable table bed_receipt (" + describe(table.Err) + "); have run: " + table.Statement, true
	}
	return "", false
}
