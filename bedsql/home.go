package bedsql

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bedsql/bed/bedsql/internal/kept"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/keyed"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/txlog"
)

// DBTX is an open local transaction of the application: *sql.Tx, *sqlx.Tx, gorm's ConnPool, or
// anything else that runs statements in one.
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// WithTx makes a soft transaction whose entries commit with tx, or not at all. tx is a local
// transaction of the application, in a database that is opened through bed and on the transaction
// log's server. Statements sent through tx run now, as ever. A write under the context of Begin
// through another bed database is recorded in memory. The COMMIT of tx writes the entries of these
// writes beside the rows of tx, in the same round trip on MariaDB and PostgreSQL. A ROLLBACK TO a
// savepoint drops the writes recorded since. Writes under the context follow the rules of Staged;
// Results return ErrStaged until End.
//
// For PostgreSQL tx must use the log's own database. For MySQL and MariaDB it must use the same
// server, with the rights to SELECT and INSERT in the log's schema. For SQLite the log must be in
// tx's own file, which no other write through bed may then share. This is checked on another
// connection when the first write is recorded, which gets a *LogElsewhereError; tx stays usable. A
// write through the database of tx is an error: use tx.
//
// From the first recorded write on, a statement that could end tx unseen is refused with ErrStaged:
// send it before. On MySQL and MariaDB these are CALL, EXECUTE, DDL and several statements in one
// text; everywhere COMMIT as text, and a ROLLBACK TO a savepoint that bed did not see. If the
// entries cannot be written, Commit rolls back, and returns a *NotLoggedError or *LogElsewhereError.
// A transaction that records nothing is committed like any other.
//
// Call End after Commit: it delivers the committed entries. Without it, or after a crash, the job
// delivers at its next round, whatever its MaxDeliveryTryDelay is. End returns ErrRolledBack after
// a Rollback, and ErrNotCommitted before the Commit. An unanswered COMMIT is ErrUnknownOutcome; End
// then finds out the outcome, or returns ErrUnknownOutcome too. The transaction may be long: no
// lease runs before End.
//
// Begin returns an error for a nil tx, for a pool, and for a transaction of a bare driver.
func WithTx(tx DBTX) TxOption {
	return func(s *SoftTransaction) {
		s.staged = newStaging()
		s.home = &home{soft: s, keys: map[string]*keyed.Write{}}
		v := reflect.ValueOf(tx)
		_, pool := tx.(interface{ SetMaxOpenConns(int) })
		_, ends := tx.(interface{ Commit() error })
		_, cache := tx.(interface{ Reset() }) // gorm's of prepared statements
		switch {
		case !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil():
			s.unusable = errors.New("bed: WithTx needs an open local transaction, it was given nil")
		case pool || cache && !ends:
			s.unusable = fmt.Errorf("bed: WithTx needs an open local transaction, it was given a pool of connections (%T): begin one by BeginTx", tx)
		default:
			s.home.covered = kept.Covers(s.ctx, tx)
			if err := s.home.meet(s.ctx, tx); err != nil {
				s.unusable = err
			}
		}
	}
}

// homeState is the known state of the transaction of WithTx.
type homeState uint8

const (
	homeOpen homeState = iota
	homeCommitted
	homeRolledBack
	// homeUnknown means that COMMIT was sent and not answered.
	homeUnknown
	// homeReplayed means that the receipt of the transaction's idempotency key answered it. The
	// writes recorded then are in the log or delivered.
	homeReplayed
)

// home is the application's transaction with whose COMMIT the entries of a soft transaction are
// written.
type home struct {
	soft *SoftTransaction
	// covered is set for the transaction of a request, which has the key itself.
	covered bool

	// meets sets these fields, and nothing changes them.
	local  *localTx
	from   *connector
	source string
	level  sql.IsolationLevel

	// mu guards the fields below, and soft.staged.
	mu    sync.Mutex
	state homeState
	// sent is when COMMIT was sent.
	sent time.Time
	// sealed is set from the beginning of COMMIT, and aborted while PostgreSQL accepts only a
	// rollback. closed is why nothing more can be recorded.
	sealed, aborted bool
	closed          error
	// most is the session's max_allowed_packet.
	most int
	// keys are the writes under the transaction's idempotency key, by data source.
	keys map[string]*keyed.Write
	// COMMIT sets the units, their compensation, and the unit with the transaction's own rows, a
	// part of a group with a compensation.
	units     []*stagedUnit
	undo, own *stagedUnit
}

var (
	errWithRolledBack = fmt.Errorf("%w: the write was rolled back", ErrStaged)
	errUseHome        = errors.New("bed: the write was neither logged nor sent: it is for the database of the transaction of WithTx, send it through that transaction")
	errReplayed       = errors.New("bed: the transaction is answered by its idempotency key")
)

// meet finds the wrapped connection of tx by a query, which reaches it through any tracer or mapper
// around it. The connection answers without a round trip: see asked.
func (h *home) meet(ctx context.Context, tx DBTX) error {
	rows, err := tx.QueryContext(scope{features: features{met: h}}.in(ctx), "SELECT 1")
	if err == nil {
		for rows.Next() {
			continue
		}
		err = errors.Join(rows.Err(), rows.Close())
	}
	switch {
	case h.local != nil && err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	const bare = "bed: WithTx needs an open local transaction of a database that is opened through bed, as by sql.Open(\"bed-mysql\", dsn) or its package's NewConnector; it was given a %T of another driver, or one that has ended"
	if err != nil {
		return fmt.Errorf(bare+": %w", tx, err)
	}
	return fmt.Errorf(bare, tx)
}

// meets notes that h writes in t, with the query of meet.
func (t *localTx) meets(ctx context.Context, h *home) error {
	if t.state == txLost {
		return t.lostError()
	}
	if t.moved && t.mode == txLogged { // CALL may have ended it
		if err := t.marks(ctx); err != nil {
			return err
		}
		if err := t.still(ctx); err != nil {
			return err
		}
	}
	h.local, h.from, h.source, h.level = t, cmp.Or(t.c.c.origin, t.c.c), t.c.c.target.DataSource, t.level
	switch {
	case t.readOnly:
		h.closed = fmt.Errorf("%w: its transaction was begun as a read-only one, and cannot write the entry", ErrStaged)
	case t.c.pinned != "" && t.c.pinnedBy == "":
		h.closed = errRaw
	}
	h.aborted = t.state == txAborted
	t.homes = append(t.homes, h)
	return nil
}

var errRaw = fmt.Errorf("%w: there was raw access to the connection of its transaction", ErrStaged)

// isOf reports whether the open transaction of c is that of WithTx.
func (h *home) isOf(c *Conn) bool { return h != nil && c.tx != nil && h.local == c.tx }

// note changes h by f.
func (h *home) note(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// recorded is how many writes are recorded.
func (h *home) recorded() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.soft.staged.writes)
}

// compensable reports whether the group has a compensation by now.
func (h *home) compensable() bool {
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.soft.staged.sums[""].statements > 0
}

// keepFirst drops all writes but the first n, which a rollback to a savepoint does.
func (h *home) keepFirst(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.soft.staged.keepFirst(n, errWithRolledBack)
	for name, w := range h.keys {
		if h.soft.staged.sums[name].statements == 0 {
			w.Back()
			delete(h.keys, name)
		}
	}
}

// looksAhead reports whether to look for the table of receipts before a write is recorded. Telling
// the log its place would need the lock on an SQLite file, and the transaction holds that.
func (h *home) looksAhead(c *connector) bool {
	driver, _ := whereabouts(c.cfg.Storage)
	return driver != "sqlite"
}

// stage records writes for one data source: all of them, or none.
func (h *home) stage(ctx context.Context, writes []*stagedWrite) error {
	if len(writes) == 0 {
		return nil
	}
	c := writes[0].c
	reach, log, err := h.reach(ctx, c)
	for i := 0; i < len(writes) && err == nil; i++ {
		err = log.Fits(&writes[i].statement, reach.MaxPacket)
	}
	if err != nil {
		return h.unwritten(c, err)
	}
	if slices.ContainsFunc(writes, func(w *stagedWrite) bool { return w.order != "" }) && !h.issues(reach) {
		return disordered("the transaction of WithTx reads from a snapshot, in which no number can be issued: begin it at READ COMMITTED")
	}
	if writes[0].undo {
		if err := h.forceReceipts(ctx); err != nil {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.mayRecord(); err != nil {
		return err
	}
	staged, undo := h.soft.staged, writes[0].undo
	switch {
	case h.source == c.target.DataSource && !undo:
		return errUseHome
	case undo && h.source == c.target.DataSource:
		if c.receipts.Schema == "" && c.target.Known(false) == nil {
			return notRecorded("it is not known where the table bed_receipt of the transaction's database is, in which its part has to leave a receipt")
		}
	case undo && staged.undone(writes[0]) == nil:
		return notRecorded(nothingToUndo)
	}
	sum, err := staged.admit(writes)
	if err != nil {
		return err
	}
	// A message has the fate of the rows alone.
	if h.soft.key != nil && c.isSQL && h.keys[c.target.DataSource] == nil {
		k, err := h.soft.key.Take(c.keys)
		if err != nil {
			return err
		}
		k.Within(h.local.gone)
		h.keys[c.target.DataSource] = k
	}
	h.most = reach.MaxPacket
	staged.add(sum, writes...)
	return nil
}

// mayRecord returns an error if nothing more can be recorded. The caller holds mu.
func (h *home) mayRecord() error {
	switch err := h.soft.recording(); {
	case err != nil:
		return err
	case h.state != homeOpen || h.sealed || h.local.gone():
		return fmt.Errorf("%w (%s): its transaction has ended, and the write was neither logged nor sent", ErrEnded, h.soft.id)
	case h.aborted && h.closed == nil:
		return fmt.Errorf("%w: its transaction is aborted, roll back to a savepoint before the error", ErrStaged)
	}
	return h.closed
}

// issues reports whether the numbers of order keys can be issued in the transaction.
func (h *home) issues(r logdb.Reach) bool {
	level := strings.ToUpper(h.level.String())
	if h.level == sql.LevelDefault {
		level = r.Isolation
	}
	return !r.Snapshots || level == "READ COMMITTED" || level == "READ UNCOMMITTED"
}

// reached is what is known of a log that the connections of a connector reach, by the dials so far: a
// later one may lead elsewhere.
type reached struct {
	logdb.Reach
	dials int64
}

// reach checks on a connection of its own whether the transaction's database has the log of c. The
// transaction itself is never asked: a missing table would abort it, and a first query fixes its
// snapshot.
func (h *home) reach(ctx context.Context, c *connector) (logdb.Reach, logdb.SQL, error) {
	from, log := h.from, logdb.Of(c.cfg.Storage)
	if known, ok := from.reaches.Load(c.cfg.Storage); ok && known.(reached).dials == from.dials.Load() {
		return known.(reached).Reach, log, nil
	}
	if log == nil || from.target.NoSideConnection {
		return logdb.Reach{}, nil, txlog.ErrLogElsewhere
	}
	ctx, cancel := context.WithTimeout(ctx, from.cfg.AttemptTimeout)
	defer cancel()
	r := reached{dials: from.dials.Load()}
	conn, err := from.dial(ctx)
	if err == nil {
		r.Reach, err = log.Reach(ctx, visit{&conn})
		_ = conn.Close()
	}
	if err == nil {
		from.reaches.Store(c.cfg.Storage, r)
	}
	return r.Reach, log, err
}

// visit is a connection for the log's own statements.
type visit struct{ driver.Conn }

func (v visit) Exec(ctx context.Context, text string) (int64, error) {
	res, _, err := attempt.Exec(ctx, v.Conn, text, nil)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (v visit) Query(ctx context.Context, text string) ([][]string, error) {
	rows, err := attempt.Ask(ctx, v.Conn, text)
	return attempt.Texts(rows), err
}

// forceReceipts looks for the tables of receipts of the parts of a group that gets a compensation.
func (h *home) forceReceipts(ctx context.Context) error {
	h.mu.Lock()
	var parts []*connector
	for _, w := range h.soft.staged.writes {
		if !w.undo && !slices.Contains(parts, w.c) && h.looksAhead(w.c) {
			parts = append(parts, w.c)
		}
	}
	h.mu.Unlock()
	for _, c := range parts {
		if err := c.forceReceipts(ctx); err != nil {
			return err
		}
	}
	return nil
}

// unwritten is the error of a write that cannot be recorded, or of a COMMIT whose entries could not
// be written.
func (h *home) unwritten(c *connector, err error) error {
	switch {
	case errors.Is(err, txlog.ErrLogElsewhere):
		_, location := whereabouts(c.cfg.Storage)
		e := &LogElsewhereError{DataSource: c.target.DataSource, Log: location, Cause: err}
		if err == txlog.ErrLogElsewhere { //nolint:errorlint // the kind of log says no more
			e.Cause = nil
		}
		return e
	case errors.Is(err, txlog.ErrUnstorable):
		return attempt.Certain(fmt.Errorf("bed: the write was neither logged nor sent, the transaction log can never take it: %w", err), dialect.Refused)
	}
	return &NotLoggedError{DataSource: c.target.DataSource, Cause: err}
}

// makeUnits makes the units of h.
func (h *home) makeUnits(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	units, err := h.soft.stagedUnits()
	if err != nil {
		return err
	}
	await(units)
	for _, u := range units {
		if len(u.unit.Order) > 0 {
			u.RemoveLater = false
		}
	}
	h.undo, err = stagedCompensation(ctx, h.soft, units)
	h.units = units
	return err
}
