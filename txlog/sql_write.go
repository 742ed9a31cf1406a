package txlog

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dbserver"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog/internal/groupcommit"
)

const (
	// closeFor bounds how long Close waits for what was begun before it.
	closeFor = groupcommit.RepeatFor
	// pings are made at each measurement of the round trip.
	pings = 5
	// attemptsFor bounds what keeping failed attempts can cost an owner that gives a
	// unit up.
	attemptsFor = time.Second
)

// Add implements [Storage]. Concurrent callers share writes: what comes while a
// write is under way leaves as one INSERT when that is answered, see
// [WithWritesInFlight]. A caller whose context ends before its units left has
// written nothing.
func (s *SQLStorage) Add(ctx context.Context, lease time.Duration, units ...*Unit) error {
	if err := s.usable(); err != nil {
		return err
	}
	r, err := s.writer.addition(lease, s.token, units)
	if err != nil || len(units) == 0 {
		return err
	}
	// The lease in the table is that of the first attempt that arrived: a
	// repetition does not prolong it. After its end somebody else may have
	// delivered and removed the unit, and a repetition would bring it back.
	switch inDoubt, err := s.queueOf(r).Do(ctx, r); {
	case inDoubt:
		if err := s.outgrown(ctx, r); err != nil {
			return err
		}
		return s.unknown("adding unit "+units[0].ID, ErrInDoubt, err)
	case err != nil && dberr.TooLarge(err):
		return unstorable{s.failed(fmt.Sprintf("adding unit %s of %d bytes", units[0].ID, r.Bytes), err)}
	case err != nil:
		return s.failed("adding unit "+units[0].ID, err)
	}
	for _, u := range units {
		u.Lease.Deadline = r.End
		u.AddRepeated = r.Body.repeated
		if len(u.Order) > 0 {
			u.Order, u.Behind = r.Body.orderly[0].order, r.Body.orderly[0].behind
			r.Body.orderly = r.Body.orderly[1:]
		}
	}
	return nil
}

// tooLarge is the error of a statement that no packet to the log's server can hold.
func tooLarge(n int, id string, size, most int) error {
	return unstorable{fmt.Errorf("txlog: statement %d of unit %s is too big for the log: with its parameters it takes %d bytes, max_allowed_packet there is %d", n+1, id, size, most)}
}

// outgrown finds out whether units were not added, without an answer, because the limit of
// the server is lower by now than it was when the log was opened: MariaDB hangs up then.
func (s *SQLStorage) outgrown(ctx context.Context, r *request) error {
	if s.db.backend.Flavor != FlavorMySQL || r.Bytes < rowOverhead<<10 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptsFor)
	defer cancel()
	most := 0
	if err := s.db.QueryRowContext(ctx, "SELECT @@global.max_allowed_packet").Scan(&most); err != nil {
		return nil
	}
	for i := range r.Body.adds {
		add := &r.Body.adds[i]
		if add.size <= most {
			continue
		}
		if there, err := tokensOf(ctx, s.db, []string{headID(add.id)}); err != nil || len(there) > 0 {
			return nil
		}
		return tooLarge(add.no, headID(add.id), add.size, most)
	}
	return nil
}

// queueOf gives the queue of a request: those under order keys wait for each other, and
// others do not wait for them.
func (s *SQLStorage) queueOf(r *request) *groupcommit.Queue[content] {
	if len(r.Body.orderly) > 0 || slices.ContainsFunc(r.Body.removals, func(u owned) bool { return len(u.keys) > 0 }) {
		return s.ordered
	}
	return s.queue
}

// AddWithin implements [TxStorage].
func (s *SQLStorage) AddWithin(ctx context.Context, tx DBTX, u *Unit, n int, prove bool) (there int, err error) {
	if err := s.usable(); err != nil {
		return 0, err
	}
	if err := u.validate(minLease, s.token); err != nil {
		return 0, err
	}
	w, err := s.visit(ctx, tx)
	if err != nil {
		return n, err
	}
	u.AtOnce = true
	if err := w.open(ctx); err != nil {
		return n, s.failed("adding unit "+u.ID, err)
	}
	issues := slices.ContainsFunc(u.Order, func(o Order) bool { return o.Number == 0 })
	there = n
	err = w.guarded(ctx, issues || prove && s.db.backend.Flavor == FlavorPostgres, func() (err error) {
		if issues {
			if err := w.issue(ctx, u); err != nil {
				return w.elsewhere(err, prove)
			}
		}
		r := u.row(n, u.encodeSettings())
		if n == 0 && u.Behind != "" {
			r.lease = blockedFrom
		}
		identity := ""
		if prove {
			identity = s.identity
		}
		insert := w.insert(&r, identity)
		if most := s.writer.maxPacket; most > 0 && insert.size() > most {
			return tooLarge(n, u.ID, insert.size(), most)
		}
		if n > 0 {
			if there, err = w.grow(ctx, u, n); err == nil && there != n+1 {
				err = errRolledBack // and so are the numbers
			}
			if err != nil {
				return err
			}
		}
		if err = w.add(ctx, insert, prove); err != nil && n > 0 && !issues {
			err = w.shrink(ctx, u, n, err)
		}
		return err
	})
	switch {
	case errors.Is(err, errRolledBack):
		return there, nil
	case err != nil && dberr.TooLarge(err):
		return n, unstorable{s.failed("adding unit "+u.ID, err)}
	case err != nil:
		return n, s.failed("adding unit "+u.ID, err)
	case n > 0:
		return there, nil
	}
	return 1, nil
}

// errRolledBack says that a part of a unit that was written within a transaction was
// rolled back.
var errRolledBack = errors.New("a savepoint was rolled back")

// NoteWithin implements [TxStorage].
func (s *SQLStorage) NoteWithin(ctx context.Context, tx DBTX, u *Unit) (noted bool, err error) {
	if err := s.usable(); err != nil {
		return false, err
	}
	if err := u.validate(minLease, s.token); err != nil {
		return false, err
	}
	w, err := s.visit(ctx, tx)
	if err != nil {
		return false, err
	}
	n, err := w.written(ctx, u)
	if err == nil && n > 0 {
		_, err = w.count(ctx, u, n, n)
	}
	return n > 0 && err == nil, s.failed("adding a part to group "+u.ID, err)
}

// MarkWithin implements [TxStorage].
func (s *SQLStorage) MarkWithin(ctx context.Context, tx DBTX, u *Unit) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := u.validate(minLease, s.token); err != nil {
		return err
	}
	w, err := s.visit(ctx, tx)
	if err != nil {
		return err
	}
	settings := u.encodeSettings()
	for i := range u.Statements {
		r := u.row(i, settings)
		if err := w.mark(ctx, &r); err != nil {
			return s.failed("adding unit "+u.ID+" to its group", err)
		}
	}
	return nil
}

// visit prepares for writing into tx.
func (s *SQLStorage) visit(ctx context.Context, tx DBTX) (w visitor, err error) {
	w = visitor{db: s.db, tx: tx, tells: s.db.backend.Flavor == FlavorMySQL && s.writer.returning}
	if w.schema, err = schemaOf(ctx, s.db); err != nil {
		return w, s.failed("finding its own schema", err)
	}
	// Text with literals saves a round trip where the driver would prepare it. Who is not
	// database/sql itself may keep each text prepared.
	switch tx.(type) {
	case *sql.Tx, *sql.Conn:
		w.literal = s.db.backend.Flavor == FlavorMySQL
	}
	return w, nil
}

// Remove implements [Storage]. Concurrent callers share writes as in
// [SQLStorage.Add]. After an error all units are still there, or ErrInDoubt.
func (s *SQLStorage) Remove(ctx context.Context, units ...*Unit) error {
	if err := s.usable(); err != nil {
		return err
	}
	r := &request{Kind: removing, For: groupcommit.RepeatFor}
	all, lost := ownedOf(r.Body.one[:0], units)
	if delivered := delivered(units); delivered != nil {
		s.noteDelivered(ctx, delivered...)
	}
	for i, u := range all {
		if r.Rows += u.rows; i == 0 || u.deadline.Before(r.Until) {
			r.Until = u.deadline
		}
	}
	r.Body.removals, r.Alone = all, r.Rows > maxRows
	if len(all) > 0 {
		switch inDoubt, err := s.queueOf(r).Do(ctx, r); {
		case inDoubt:
			return s.unknown("removing unit "+all[0].id, ErrInDoubt, err)
		case err != nil:
			return s.failed("removing unit "+all[0].id, err)
		}
	}
	for i := range all {
		if !all[i].done {
			lost = append(lost, all[i].unit)
		}
	}
	if len(lost) > 0 {
		return leaseLost("removing", lost...)
	}
	return nil
}

// delivered are the ids of those units whose removal States is to account for.
func delivered(units []*Unit) (ids []string) {
	for _, u := range units {
		if u != nil && u.Delivered {
			ids = append(ids, u.ID)
		}
	}
	return ids
}

// Release implements [Storage].
func (s *SQLStorage) Release(ctx context.Context, u *Unit, v Verdict) error {
	if err := s.usable(); err != nil {
		return err
	}
	all, lost := ownedOf(nil, []*Unit{u})
	if lost != nil {
		return leaseLost("releasing", u)
	}
	var last any // NULL: as it is
	if v.Err != "" {
		last = errorText(v.Err)
	}
	tries, to := bit(v.CountTry), any(nil) // as above
	if v.DataSource != "" {
		tries, to = -int64(u.Tries), v.DataSource
	}
	settings, contended := any(nil), *u
	if contended.contend(v); contended.ContendedFrom != u.ContendedFrom || u.AtOnce {
		settings = contended.encodeSettings()
	}
	verdict := []any{tries, bit(v.InDoubt), last, to, settings, bit(v.Park), millis(v.After)}
	what := "releasing unit " + u.ID
	found := false
	// The lease only says until when the unit is certainly the owner's; the fence
	// decides.
	end := time.Now().Add(groupcommit.RepeatFor)
	if end.Before(u.Lease.Deadline) {
		end = u.Lease.Deadline
	}
	inDoubt, err := s.retry.Do(ctx, end, func(ctx context.Context, again bool) (err error) {
		// As with a removal: before its lease ended only this owner could have given
		// it up.
		found, err = s.db.fenced(ctx, releaseOwned, verdict, &all[0])
		found = found || again && !u.Lease.Over()
		return err
	})
	switch {
	case err != nil:
		return s.ended(what, inDoubt, err)
	case !found:
		return leaseLost("releasing", u)
	}
	if len(v.Attempts) > 0 { // nothing depends on whether they are kept
		ctx, cancel := context.WithTimeout(ctx, attemptsFor)
		defer cancel()
		_ = s.journal.AddAttempts(ctx, u.ID, v.Attempts)
	}
	return nil
}

// Locate implements [Storage].
func (s *SQLStorage) Locate(ctx context.Context, u *Unit, place, session string) error {
	located := *u
	located.Place, located.Session = place, session
	if err := located.validate(minLease, ""); err != nil {
		return err
	}
	found := false
	if err := s.do(ctx, "locating the receipt of unit "+u.ID, func(ctx context.Context) (err error) {
		head := owned{id: u.ID, token: u.Lease.Token, rows: 1}
		if u.Group() {
			found, err = locateGroup(ctx, s.db, &head, &located)
			return err
		}
		found, err = runFenced(ctx, s.db, locateOwned, []any{located.encodeSettings()}, &head)
		return err
	}); err != nil {
		return err
	}
	if !found {
		return leaseLost("locating", u)
	}
	u.Place, u.Session = place, session
	return nil
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// Renew implements [Storage]. A renewal without an answer is not repeated: an
// error leaves the deadlines of those in question as they were.
func (s *SQLStorage) Renew(ctx context.Context, lease time.Duration, units ...*Unit) (lost []*Unit, err error) {
	copies, unowned := ownedOf(make([]owned, 0, len(units)), units)
	all := make([]*owned, len(copies))
	for i := range copies {
		all[i] = &copies[i]
	}
	deadline := time.Now().Add(lease)
	ms := lease.Milliseconds() + leaseSlack
	err = s.do(ctx, "renewing leases", func(ctx context.Context) error {
		lost = unowned
		return byOwner(all, func(same []*owned, ids []string) error {
			renewed := 0
			if err := chunks(ids, func(portion []any) error {
				args := append(append([]any{ms, ms}, portion...), same[0].token)
				n, err := run(ctx, s.db, shape{kind: renewOwned, rows: len(portion)}, args...)
				renewed += int(n)
				return err
			}); err != nil {
				return err
			}
			var tokens map[string]string
			if renewed != len(ids) { // not all were owned
				if tokens, err = tokensOf(ctx, s.db, ids); err != nil {
					return err
				}
			}
			for _, u := range same {
				if tokens == nil || tokens[u.id] == u.token {
					u.unit.Lease.Deadline = deadline
				} else {
					lost = append(lost, u.unit)
				}
			}
			return nil
		})
	})
	return lost, err
}

// Claim implements [Storage].
func (s *SQLStorage) Claim(ctx context.Context, r ClaimRequest) (units []*Unit, err error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	err = s.do(ctx, "claiming the units of "+r.DataSource, func(ctx context.Context) (err error) {
		units, err = s.claimer.claim(ctx, &r)
		return err
	})
	return units, err
}

// The kinds of requests.
const (
	adding uint8 = iota
	removing
)

// request is what one caller wants added or removed, all or none of it.
type request = groupcommit.Request[content]

type content struct {
	adds     []row
	removals []owned
	// one is what removals are, as a rule, and list the removals of a group.
	one  [1]owned
	list [1]*owned
	// repeated: an attempt without an answer was repeated.
	repeated bool
	// orderly are those of the units to be added that are under order keys.
	orderly []*orderly
}

// owned is a unit as its owner knows it: a copy, as row is.
type owned struct {
	unit      *Unit // not to be looked at while its caller may have left
	id, token string
	rows      int
	keys      []string // that it is under
	deadline  time.Time
	// found: the attempt under way found it to be its owner's. done: an attempt that
	// was committed did.
	found, done bool
}

// ownedOf appends the units to all; lost are those that nobody can own.
func ownedOf(all []owned, units []*Unit) (_ []owned, lost []*Unit) {
	for _, u := range units {
		if u == nil || u.Lease.Token == "" {
			lost = append(lost, u)
			continue
		}
		all = append(all, owned{unit: u, id: u.ID, token: u.Lease.Token, rows: max(1, min(len(u.Statements), MaxStatements)), deadline: u.Lease.Deadline})
		if len(u.Order) > 0 {
			all[len(all)-1].keys = keysUnder(u)
		}
	}
	return all, lost
}

// writer makes one write of what a group of callers adds and removes.
type writer struct {
	db *database
	// maxPacket is the greatest number of bytes of one statement; 0 means any.
	maxPacket int
	// returning says that a DELETE can return what it deleted (MySQL's cannot,
	// MariaDB's can).
	returning bool
}

// learn asks the database what it can do.
func (w *writer) learn(ctx context.Context) error {
	switch w.db.backend.Flavor {
	case FlavorMySQL:
		var version string
		if err := w.db.QueryRowContext(ctx, "SELECT @@max_allowed_packet, @@version").Scan(&w.maxPacket, &version); err != nil {
			return err
		}
		product := dbserver.MySQLProduct(version)
		w.returning = product == "MariaDB"
		w.db.unlocked = product == "TiDB"
	case FlavorPostgres:
		w.returning = true
	case FlavorSQLite:
		w.returning = true
		// Only a wish: readers do not block writers. It is no failure if a file
		// system cannot do it, or another process is just opening the file.
		_, _ = w.db.ExecContext(ctx, "PRAGMA journal_mode = WAL")
	}
	return nil
}

// errLeaseOver: somebody else may have delivered and removed what would be written
// again. As long as its machine slept, nothing else tells.
var errLeaseOver = errors.New("the lease may be over under which it was to be written")

// addition makes the request to add units under a lease. The log counts the lease
// from the moment at which an attempt arrives, so that it lasts at least from when
// that left.
func (w *writer) addition(lease time.Duration, token string, units []*Unit) (*request, error) {
	r := &request{Kind: adding, For: lease}
	for _, u := range units {
		if err := u.validate(lease, token); err != nil {
			return nil, err
		}
		r.Rows += len(u.Statements)
	}
	r.Body.adds = make([]row, 0, r.Rows)
	for _, u := range units {
		settings := u.encodeSettings()
		if len(u.Order) > 0 {
			r.Body.orderly = append(r.Body.orderly, orderlyOf(u))
		}
		for i := range u.Statements {
			r.Body.adds = append(r.Body.adds, u.row(i, settings))
			add := &r.Body.adds[len(r.Body.adds)-1]
			add.size, add.lease = rowOverhead+128*len(u.Order), lease.Milliseconds()+leaseSlack
			for i := range columns {
				if text := columns[i].text; text != nil {
					add.size += len(text(add))
				}
			}
			if w.maxPacket > 0 && add.size > w.maxPacket {
				return nil, tooLarge(i, u.ID, add.size, w.maxPacket)
			}
			r.Bytes += add.size
		}
	}
	r.Alone = r.Rows > maxRows || r.Bytes > w.insertBytes()
	return r, nil
}

// write makes one write of the requests: of those of one kind one statement, as a
// rule. Those of both kinds, which only SQLite's queue mixes, leave in one transaction:
// such a database has one writer anyway, and each COMMIT waits for the disk.
func (w *writer) write(ctx context.Context, group []*request, again bool) (err error) {
	rows, removals, err := gather(group, again)
	switch {
	case err != nil:
		return err
	case len(rows) > 1 && group[0].Alone:
		err = w.db.inTx(ctx, func(ctx context.Context, q runner) error { return w.insertPortions(ctx, q, rows) })
	case len(removals) == 0:
		err = w.db.insert(ctx, w.db, rows)
	case len(rows) == 0:
		err = w.remove(ctx, removals)
	default:
		err = w.db.inTx(ctx, func(ctx context.Context, q runner) error {
			if err := w.db.insert(ctx, q, rows); err != nil {
				return err
			}
			return w.removeReturning(ctx, q, removals)
		})
	}
	if err != nil {
		return err
	}
	return w.removed(ctx, removals, again)
}

// removed notes what a write has removed.
func (w *writer) removed(ctx context.Context, removals []*owned, again bool) error {
	for _, u := range removals {
		u.done = u.done || u.found
	}
	if again && len(removals) > 0 {
		return w.markGone(ctx, removals)
	}
	return nil
}

// gather gives the rows that requests add and the units that they remove.
func gather(group []*request, again bool) (rows []*row, removals []*owned, err error) {
	removals = group[0].Body.list[:0]
	if group[0].Kind == adding {
		rows = make([]*row, 0, len(group))
	}
	for _, r := range group {
		if again {
			if r.Body.repeated = true; r.Kind == adding && (Lease{Deadline: r.End}).Over() {
				return nil, nil, errLeaseOver
			}
		}
		for i := range r.Body.adds {
			rows = append(rows, &r.Body.adds[i])
		}
		for i := range r.Body.removals {
			r.Body.removals[i].found = false
			removals = append(removals, &r.Body.removals[i])
		}
	}
	return rows, removals, nil
}

// insertBytes is about how large one INSERT may become if it could be split.
func (w *writer) insertBytes() int {
	const most = 4 << 20
	if w.maxPacket > 0 {
		return min(most, w.maxPacket/4)
	}
	return most
}

// insertPortions writes rows that are too many or too large for one statement.
func (w *writer) insertPortions(ctx context.Context, q runner, rows []*row) error {
	for len(rows) > 0 {
		size, n := 0, 0
		for n < min(len(rows), maxRows) && (n == 0 || size+rows[n].size <= w.insertBytes()) {
			size += rows[n].size
			n++
		}
		if err := w.db.insert(ctx, q, rows[:n]); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// manyRows is the number of rows from which a local transaction is worth it. For
// MariaDB it is more work to return what a DELETE deleted than to undo it in case
// one row is not owned. On PostgreSQL a plan that was made while the log was small
// reads all of it, even when it has grown or is full of what was deleted, and is kept
// until the next VACUUM or ANALYZE: there the transaction turns such plans off.
const manyRows = 64

// remove deletes units and notes which of them were owned.
func (w *writer) remove(ctx context.Context, units []*owned) (err error) {
	first, rows := units[0], 0
	several := false
	for _, u := range units {
		rows += u.rows
		several = several || u.token != first.token
	}
	mysql, postgres := w.db.backend.Flavor == FlavorMySQL, w.db.backend.Flavor == FlavorPostgres
	switch {
	case len(units) == 1 && rows == 1:
		n, err := run(ctx, w.db, shape{kind: deleteOwned, rows: 1}, first.id, first.token)
		first.found = n > 0
		return err
	case len(units) == 1:
		first.found, err = w.db.fenced(ctx, deleteOwned, nil, first)
		return err
	case !w.returning || mysql && rows >= manyRows:
		err = w.db.inTx(ctx, func(ctx context.Context, q runner) error { return removeAll(ctx, q, units) })
		if errors.Is(err, errNotAll) {
			return w.db.inTx(ctx, func(ctx context.Context, q runner) (err error) {
				for i := 0; i < len(units) && err == nil; i++ {
					units[i].found, err = runFenced(ctx, q, deleteOwned, nil, units[i])
				}
				return err
			})
		}
		return err
	case several || rows > maxRows || postgres && rows >= manyRows:
		return w.db.inTx(ctx, func(ctx context.Context, q runner) error {
			if postgres {
				if _, err := q.ExecContext(ctx, "SET LOCAL enable_seqscan = off"); err != nil {
					return err
				}
			}
			return w.removeReturning(ctx, q, units)
		})
	default:
		return w.removeReturning(ctx, w.db, units)
	}
}

// errNotAll says that some of the units were not owned, and nothing was removed.
var errNotAll = errors.New("not all of the units are owned")

// removeAll deletes all the units, or none of them if one is not owned: MySQL does not
// say which one that is.
func removeAll(ctx context.Context, q runner, units []*owned) error {
	return byOwner(units, func(units []*owned, ids []string) error {
		left := len(ids)
		err := chunks(ids, func(portion []any) error {
			n, err := run(ctx, q, shape{kind: deleteOwned, rows: len(portion)}, append(portion, units[0].token)...)
			left -= int(n)
			return err
		})
		if err == nil && left != 0 {
			return errNotAll
		}
		for _, u := range units {
			u.found = true
		}
		return err
	})
}

// removeReturning deletes the units by one statement for each owner that returns which
// rows there were, or several if there are many. On PostgreSQL it is the same for all
// sizes: plans for lists, one for each size, are more often made, and kept, as scans of
// the whole table.
func (w *writer) removeReturning(ctx context.Context, q runner, units []*owned) error {
	return byOwner(units, func(units []*owned, ids []string) error {
		there := make(map[string]bool, len(units))
		remove := func(sh shape, args []any) error {
			found, err := texts(ctx, q, sh, append(args, units[0].token)...)
			for _, id := range found {
				there[headID(id)] = true
			}
			return err
		}
		var err error
		switch {
		case w.db.backend.Flavor != FlavorPostgres:
			err = chunks(ids, func(portion []any) error {
				return remove(shape{kind: deleteReturned, rows: len(portion)}, portion)
			})
		case len(ids) < manyRows:
			err = remove(shape{kind: deleteReturned, form: byArray}, []any{sqltext.Array(ids)})
		default:
			err = remove(shape{kind: deleteReturned, form: byArrayAndIndex}, []any{sqltext.Array(ids)})
		}
		for _, u := range units {
			u.found = there[u.id]
			delete(there, u.id) // of two callers that remove the same unit, one has removed it
		}
		return err
	})
}

// markGone marks as removed what is gone after an attempt without an answer, as
// long as its lease lasts: nobody but that attempt can have removed it.
func (w *writer) markGone(ctx context.Context, units []*owned) error {
	var ids []string
	for _, u := range units {
		if !u.done {
			ids = append(ids, u.id)
		}
	}
	tokens, err := tokensOf(ctx, w.db, ids)
	if err != nil {
		return err
	}
	for _, u := range units {
		if _, there := tokens[u.id]; !there && !(Lease{Deadline: u.deadline}).Over() {
			u.done = true
		}
	}
	return nil
}

// byOwner calls f for the units of each owner, and the ids of their rows. As a rule
// all have the same one. They are sorted, so that two of these statements take their
// locks in the same order, and a unit's first row, which decides, comes first.
func byOwner(units []*owned, f func(same []*owned, ids []string) error) error {
	slices.SortFunc(units, func(a, b *owned) int {
		return cmp.Or(strings.Compare(a.token, b.token), strings.Compare(a.id, b.id))
	})
	for n := 0; len(units) > 0; units, n = units[n:], 0 {
		ids := make([]string, 0, len(units))
		for ; n < len(units) && units[n].token == units[0].token; n++ {
			for row := range units[n].rows {
				ids = append(ids, rowID(units[n].id, row))
			}
		}
		if err := f(units[:n], ids); err != nil {
			return err
		}
	}
	return nil
}
