package txlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dbserver"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog/internal/groupcommit"
)

const (
	// closeFor bounds how long Close waits for earlier writes.
	closeFor = groupcommit.RepeatFor
	// pings is the number of pings in a measurement of the round trip.
	pings = 5
	// attemptsFor bounds the time that Release spends on keeping failed attempts.
	attemptsFor = time.Second
)

// Add implements [Storage]. Concurrent callers share writes: units that arrive during a
// write leave together in the next INSERT, see [WithWritesInFlight]. If the caller's context
// ends before its units have left, they are not written.
func (s *SQLStorage) Add(ctx context.Context, lease time.Duration, units ...*Unit) error {
	if err := s.usable(); err != nil {
		return err
	}
	r, err := s.writer.addition(lease, s.token, units)
	if err != nil || len(units) == 0 {
		return err
	}
	// The first attempt that arrived sets the lease in the table; a repetition does not extend
	// it. After its end another owner may have delivered and removed the unit, and a repetition
	// would bring it back.
	switch inDoubt, err := s.queueOf(r).Do(ctx, r); {
	case inDoubt:
		if err := s.outgrown(ctx, r); err != nil {
			return err
		}
		return s.ended("adding unit "+units[0].ID, ErrInDoubt, true, err)
	case err != nil && dberr.TooLarge(err):
		return unstorable{s.failed(fmt.Sprintf("adding unit %s of %d bytes", units[0].ID, r.Bytes), err)}
	case err != nil:
		return s.failed("adding unit "+units[0].ID, err)
	}
	for _, u := range units {
		u.Lease.Deadline = r.End
		u.AddRepeated = r.Body.repeated
		if len(u.Order) > 0 {
			u.Order, u.Behind = r.Body.orderly[0].Order, r.Body.orderly[0].Behind
			r.Body.orderly = r.Body.orderly[1:]
		}
	}
	return nil
}

// tooLarge is the error of a statement that exceeds the packet size of the log's server.
func tooLarge(n int, id string, size, most int) error {
	return unstorable{fmt.Errorf("txlog: statement %d of unit %s is too big for the log: with its parameters it takes %d bytes, max_allowed_packet there is %d", n+1, id, size, most)}
}

// outgrown checks whether an unanswered Add failed because the server's limit has been
// lowered since the log was opened: MariaDB then hangs up.
func (s *SQLStorage) outgrown(ctx context.Context, r *request) error {
	if s.db.backend.Flavor != sqltext.MySQL || r.Bytes < rowOverhead<<10 {
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
		if there, err := tokensOf(ctx, s.db, []string{entry.HeadID(add.id)}); err != nil || len(there) > 0 {
			return nil
		}
		return tooLarge(add.no, entry.HeadID(add.id), add.size, most)
	}
	return nil
}

// queueOf returns the queue of a request. Requests under order keys wait for each other in a
// queue of their own.
func (s *SQLStorage) queueOf(r *request) *groupcommit.Queue[content] {
	if len(r.Body.orderly) > 0 || slices.ContainsFunc(r.Body.removals, func(u owned) bool { return len(u.keys) > 0 }) {
		return s.ordered
	}
	return s.queue
}

// Remove implements [Storage]. Concurrent callers share writes as in [SQLStorage.Add]. After
// an error other than ErrInDoubt all units are still there.
func (s *SQLStorage) Remove(ctx context.Context, units ...*Unit) error {
	if err := s.usable(); err != nil {
		return err
	}
	r := &request{Kind: removing, For: groupcommit.RepeatFor}
	all, lost := ownedOf(r.Body.one[:0], units)
	for i, u := range all {
		if r.Rows += u.rows; i == 0 || u.deadline.Before(r.Until) {
			r.Until = u.deadline
		}
	}
	r.Body.removals, r.Alone = all, r.Rows > maxRows
	if len(all) > 0 {
		if inDoubt, err := s.queueOf(r).Do(ctx, r); err != nil {
			return s.ended("removing unit "+all[0].id, ErrInDoubt, inDoubt, err)
		}
	}
	for i := range all {
		if !all[i].done {
			lost = append(lost, all[i].unit)
		}
	}
	if len(lost) > 0 {
		return entry.LeaseLost("removing", lost...)
	}
	return nil
}

// Release implements [Storage].
func (s *SQLStorage) Release(ctx context.Context, u *Unit, v entry.Verdict) error {
	if err := s.usable(); err != nil {
		return err
	}
	all, lost := ownedOf(nil, []*Unit{u})
	if lost != nil {
		return entry.LeaseLost("releasing", u)
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
	if contended.Contend(v); contended.ContendedFrom != u.ContendedFrom || u.AtOnce {
		settings = encodeSettings(&contended)
	}
	verdict := []any{tries, bit(v.InDoubt), last, to, settings, bit(v.Park), entry.Millis(v.After)}
	what := "releasing unit " + u.ID
	found := false
	// The lease only bounds the time in which the unit certainly has this owner; the fence
	// decides.
	end := time.Now().Add(groupcommit.RepeatFor)
	if end.Before(u.Lease.Deadline) {
		end = u.Lease.Deadline
	}
	inDoubt, err := s.retry.Do(ctx, end, func(ctx context.Context, again bool) (err error) {
		// As with a removal: until the lease ends, only this owner can have released the unit.
		found, err = fenced(ctx, s.db, releaseOwned, verdict, &all[0])
		found = found || again && !u.Lease.Over()
		return err
	})
	switch {
	case err != nil:
		return s.ended(what, ErrUnconfirmed, inDoubt, err)
	case !found:
		return entry.LeaseLost("releasing", u)
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
	if err := validate(&located, entry.MinLease, ""); err != nil {
		return err
	}
	found := false
	if err := s.do(ctx, "locating the receipt of unit "+u.ID, func(ctx context.Context) (err error) {
		head := owned{id: u.ID, token: u.Lease.Token, rows: 1}
		if u.Group() {
			found, err = locateGroup(ctx, s.db, &head, &located)
			return err
		}
		found, err = fenced(ctx, s.db, locateOwned, []any{encodeSettings(&located)}, &head)
		return err
	}); err != nil {
		return err
	}
	if !found {
		return entry.LeaseLost("locating", u)
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

// Renew implements [Storage]. It does not repeat a renewal without an answer: an error
// leaves the deadlines of the affected units unchanged.
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
			renewed, err := runIn(ctx, s.db, renewOwned, []any{ms, ms}, ids, same[0].token)
			if err != nil {
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
func (s *SQLStorage) Claim(ctx context.Context, r entry.ClaimRequest) (units []*Unit, err error) {
	if err := r.Validate(); err != nil {
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

// request holds the additions or removals of one caller, carried out all or none.
type request = groupcommit.Request[content]

type content struct {
	adds     []row
	removals []owned
	// one backs removals in the usual case of a single unit, and list the removals of a group.
	one  [1]owned
	list [1]*owned
	// repeated is set if an unanswered attempt was repeated.
	repeated bool
	// orderly holds copies of the added units that are under order keys, with ids and keys.
	orderly []*Unit
}

// owned is the owner's copy of a unit.
type owned struct {
	unit      *Unit // not to be looked at while its caller may have left
	id, token string
	rows      int
	keys      []string // that it is under
	deadline  time.Time
	// delivered is set if States must report the unit as delivered.
	delivered bool
	// found is set if the current attempt found its token in place, done if a committed attempt
	// did.
	found, done bool
}

// ownedOf appends the units to all; lost holds the units without an owner.
func ownedOf(all []owned, units []*Unit) (_ []owned, lost []*Unit) {
	for _, u := range units {
		if u == nil || u.Lease.Token == "" {
			lost = append(lost, u)
			continue
		}
		all = append(all, owned{unit: u, id: u.ID, token: u.Lease.Token, rows: max(1, min(len(u.Statements), entry.MaxStatements)), deadline: u.Lease.Deadline, delivered: u.Delivered})
		if len(u.Order) > 0 {
			all[len(all)-1].keys = entry.KeysUnder(u)
		}
	}
	return all, lost
}

// writer makes one write from the additions and removals of a group of callers.
type writer struct {
	db      *database
	journal *journal.Journal
	// maxPacket is the maximum size of a statement in bytes; 0 means no limit.
	maxPacket int
	// returning is set if a DELETE can return its rows, as in MariaDB but not in MySQL. SQLite, which
	// needs no round trips, does without.
	returning bool
}

// learn queries the database's capabilities.
func (w *writer) learn(ctx context.Context) error {
	switch w.db.backend.Flavor {
	case sqltext.MySQL:
		var version string
		if err := w.db.QueryRowContext(ctx, "SELECT @@max_allowed_packet, @@version").Scan(&w.maxPacket, &version); err != nil {
			return err
		}
		product := dbserver.MySQLProduct(version)
		w.returning = product == "MariaDB"
		w.db.unlocked = product == "TiDB"
		return w.db.checkSkipLocked(ctx, product, version)
	case sqltext.Postgres:
		w.returning = true
	case sqltext.SQLite:
		// WAL keeps readers from blocking writers. It is optional: a file system may lack it, and
		// another process may just be opening the file.
		_, _ = w.db.ExecContext(ctx, "PRAGMA journal_mode = WAL")
	}
	return nil
}

// errLeaseOver stops a repetition after the lease: another owner may have delivered and
// removed the unit. After a sleep of its machine, only this check detects that.
var errLeaseOver = errors.New("the lease may be over under which it was to be written")

// addition returns the request to add units under a lease. The log counts the lease from the
// arrival of an attempt, so that it lasts at least that long from the attempt's start.
func (w *writer) addition(lease time.Duration, token string, units []*Unit) (*request, error) {
	r := &request{Kind: adding, For: lease}
	for _, u := range units {
		if err := validate(u, lease, token); err != nil {
			return nil, err
		}
		r.Rows += len(u.Statements)
	}
	r.Body.adds = make([]row, 0, r.Rows)
	for _, u := range units {
		settings := encodeSettings(u)
		if len(u.Order) > 0 {
			r.Body.orderly = append(r.Body.orderly, &Unit{ID: u.ID, Order: slices.Clone(u.Order)})
		}
		for i := range u.Statements {
			r.Body.adds = append(r.Body.adds, rowOf(u, i, settings))
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

// write writes a group of requests, usually by one statement for each kind. Only SQLite's
// queue mixes kinds. It writes both in one transaction: such a database has one writer
// anyway, and each COMMIT waits for the disk.
func (w *writer) write(ctx context.Context, group []*request, again bool) (err error) {
	rows, removals, err := gather(group, again)
	switch {
	case err != nil:
		return err
	case w.db.backend.Flavor == sqltext.SQLite && len(rows)+len(removals) > 1:
		err = w.inTx(ctx, removals, func(ctx context.Context, q runner) error {
			// BEGIN has the write lock, so that no statement waits. The driver would start a goroutine for
			// each to watch ctx.
			quiet := context.WithoutCancel(ctx)
			if err := w.insertPortions(quiet, q, rows); err != nil {
				return err
			}
			return w.removeFenced(quiet, q, removals)
		})
	case len(rows) > 1 && group[0].Alone:
		err = w.db.inTx(ctx, func(ctx context.Context, q runner) error { return w.insertPortions(ctx, q, rows) })
	case len(removals) == 0:
		err = w.db.insert(ctx, w.db, rows)
	default:
		err = w.remove(ctx, removals)
	}
	if err != nil {
		return err
	}
	return w.removed(ctx, removals, again)
}

// inTx runs f in one local transaction, which also records the delivered units of removals. If it
// cannot record them, f runs without. The record comes first: a statement that waits for a locked
// table holds no row that the next attempt needs.
func (w *writer) inTx(ctx context.Context, removals []*owned, f func(context.Context, runner) error) error {
	err := w.db.inTx(ctx, func(ctx context.Context, q runner) error {
		if err := w.noteDelivered(ctx, q, removals); err != nil && !errors.Is(err, journal.ErrOff) {
			return fmt.Errorf("%w: %w", errNotNoted, err)
		}
		return f(ctx, q)
	})
	if errors.Is(err, errNotNoted) {
		return w.db.inTx(ctx, f)
	}
	return err
}

// errNotNoted repeats a write without the table of attempts.
var errNotNoted = errors.New("the table of attempts cannot be used")

// noteDelivered records, before their removal, the units that States must report as delivered. If
// it fails, States cannot report their end.
func (w *writer) noteDelivered(ctx context.Context, q runner, units []*owned) error {
	var ids []string
	for _, u := range units {
		if u.delivered {
			ids = append(ids, u.id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, attemptsFor)
	defer cancel()
	return w.note(ctx, q, journal.Delivered, ids)
}

// note records the ends of units.
func (w *writer) note(ctx context.Context, q runner, end journal.End, ids []string) error {
	f := w.db.backend.Flavor
	note := func(n int, args ...any) error {
		return w.journal.Use(journal.Attempts, func() error {
			_, err := run(ctx, q, shape{kind: kind(end.Statement(f, n))}, args...)
			return err
		})
	}
	id := journal.NewID()
	if f == sqltext.Postgres && len(ids) > 0 {
		return note(0, id, sqltext.Array(ids))
	}
	for portion := range slices.Chunk(ids, maxRows) {
		n := insertSize(len(portion)) // a repeated row costs as much as another
		args := make([]any, 0, 2*n)
		for i := range n {
			args = append(args, portion[min(i, len(portion)-1)], id)
		}
		if err := note(n, args...); err != nil {
			return err
		}
	}
	return nil
}

// removed records the units that a write has removed. After an unanswered attempt, missing units
// count, too: until the end of the lease, only that attempt can have removed them.
func (w *writer) removed(ctx context.Context, removals []*owned, again bool) error {
	var left []string
	for _, u := range removals {
		if u.done = u.done || u.found; !u.done {
			left = append(left, u.id)
		}
	}
	if !again || len(left) == 0 {
		return nil
	}
	tokens, err := tokensOf(ctx, w.db, left)
	if err != nil {
		return err
	}
	for _, u := range removals {
		if _, there := tokens[u.id]; !there && !(entry.Lease{Deadline: u.deadline}).Over() {
			u.done = true
		}
	}
	return nil
}

// gather returns the rows to add and the units to remove.
func gather(group []*request, again bool) (rows []*row, removals []*owned, err error) {
	removals = group[0].Body.list[:0]
	if group[0].Kind == adding {
		rows = make([]*row, 0, len(group))
	}
	for _, r := range group {
		if again {
			if r.Body.repeated = true; r.Kind == adding && (entry.Lease{Deadline: r.End}).Over() {
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

// insertBytes is the approximate limit for one INSERT of several rows.
func (w *writer) insertBytes() int {
	const most = 4 << 20
	if w.maxPacket > 0 {
		return min(most, w.maxPacket/4)
	}
	return most
}

// portion returns how many of these rows fit into one statement.
func (w *writer) portion(rows []*row) (n int) {
	for size := 0; n < min(len(rows), maxRows) && (n == 0 || size+rows[n].size <= w.insertBytes()); n++ {
		size += rows[n].size
	}
	return n
}

// insertPortions writes rows that exceed one statement. On SQLite a list would cost more than its
// rows: the driver needs the square of its parameters, and the database a temporary table.
func (w *writer) insertPortions(ctx context.Context, q runner, rows []*row) error {
	for len(rows) > 0 {
		n := 1
		if w.db.backend.Flavor != sqltext.SQLite {
			n = w.portion(rows)
		}
		if err := w.db.insert(ctx, q, rows[:n]); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// manyRows is the number of rows from which a local transaction is worth it. MariaDB returns
// the deleted rows more slowly than it rolls back a DELETE in the rare case of a row with
// another owner. PostgreSQL may keep a plan from when the log was small until the next
// VACUUM or ANALYZE. Such a plan reads the whole table, even after growth or full of dead
// rows: the transaction disables such plans.
const manyRows = 64

// remove deletes units and records which of them were owned.
func (w *writer) remove(ctx context.Context, units []*owned) (err error) {
	first, rows := units[0], 0
	several := false
	for _, u := range units {
		rows += u.rows
		several = several || u.token != first.token
	}
	mysql, postgres := w.db.backend.Flavor == sqltext.MySQL, w.db.backend.Flavor == sqltext.Postgres
	switch {
	case len(units) == 1:
		_ = w.noteDelivered(ctx, w.db, units)
		first.found, err = fenced(ctx, w.db, deleteOwned, nil, first)
		return err
	case !w.returning || mysql && rows >= manyRows:
		err = w.inTx(ctx, units, func(ctx context.Context, q runner) error { return removeAll(ctx, q, units) })
		if errors.Is(err, errNotAll) {
			return w.inTx(ctx, units, func(ctx context.Context, q runner) error { return w.removeFenced(ctx, q, units) })
		}
		return err
	case several || rows > maxRows || postgres && rows >= manyRows:
		return w.inTx(ctx, units, func(ctx context.Context, q runner) error {
			if postgres {
				if _, err := q.ExecContext(ctx, "SET LOCAL enable_seqscan = off"); err != nil {
					return err
				}
			}
			return w.removeReturning(ctx, q, units)
		})
	default:
		_ = w.noteDelivered(ctx, w.db, units)
		return w.removeReturning(ctx, w.db, units)
	}
}

// removeFenced deletes units and records which of them were owned.
func (w *writer) removeFenced(ctx context.Context, q runner, units []*owned) (err error) {
	if w.returning {
		return w.removeReturning(ctx, q, units)
	}
	for i := 0; i < len(units) && err == nil; i++ {
		units[i].found, err = fenced(ctx, q, deleteOwned, nil, units[i])
	}
	return err
}

// errNotAll reports that units were not owned, so that the removal removed no unit.
var errNotAll = errors.New("not all of the units are owned")

// removeAll deletes all units, or no unit if one is not owned: MySQL does not report which
// one.
func removeAll(ctx context.Context, q runner, units []*owned) error {
	return byOwner(units, func(units []*owned, ids []string) error {
		removed, err := runIn(ctx, q, deleteOwned, nil, ids, units[0].token)
		if err == nil && removed != len(ids) {
			return errNotAll
		}
		for _, u := range units {
			u.found = true
		}
		return err
	})
}

// removeReturning deletes the units by one statement for each owner, or several for many
// rows. The statement returns the deleted rows. PostgreSQL uses one statement for all sizes:
// with a list of each size, more plans are made and kept that scan the whole table.
func (w *writer) removeReturning(ctx context.Context, q runner, units []*owned) error {
	return byOwner(units, func(units []*owned, ids []string) error {
		there := make(map[string]bool, len(units))
		remove := func(sh shape, args []any) error {
			found, err := texts(ctx, q, sh, append(args, units[0].token)...)
			for _, id := range found {
				there[entry.HeadID(id)] = true
			}
			return err
		}
		var err error
		switch {
		case w.db.backend.Flavor != sqltext.Postgres:
			err = chunks(ids, func(portion []any) error {
				return remove(shape{kind: deleteReturned, rows: len(portion)}, portion)
			})
		case len(ids) < manyRows:
			err = remove(shape{kind: deleteArray}, []any{sqltext.Array(ids)})
		default:
			err = remove(shape{kind: deleteByIndex}, []any{sqltext.Array(ids)})
		}
		for _, u := range units {
			u.found = there[u.id]
			delete(there, u.id) // of two callers that remove the same unit, one has removed it
		}
		return err
	})
}

// byOwner calls f for the units of each owner, with the ids of their rows. Usually all units
// have the same owner. It sorts them: two such statements then take their locks in the same
// order, and a unit's first row, which decides, comes first.
func byOwner(units []*owned, f func(same []*owned, ids []string) error) error {
	slices.SortFunc(units, func(a, b *owned) int {
		return cmp.Or(strings.Compare(a.token, b.token), strings.Compare(a.id, b.id))
	})
	for n := 0; len(units) > 0; units, n = units[n:], 0 {
		ids := make([]string, 0, len(units))
		for ; n < len(units) && units[n].token == units[0].token; n++ {
			for row := range units[n].rows {
				ids = append(ids, entry.RowID(units[n].id, row))
			}
		}
		if err := f(units[:n], ids); err != nil {
			return err
		}
	}
	return nil
}
