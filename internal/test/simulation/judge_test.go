package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/txlog"
)

var errInvalid = driver.ErrInvalidConn

// applied is how many times a part was.
func (w *world) applied(p *part) int64 { return w.server(p.source).effect(p.id) }

func (w *world) requestOf(u *logged) *request { return w.byRow[u.texts[0]].request }

// look reads the log.
func (w *world) look() (all []*logged) {
	w.n.do(func() { all = w.entries() })
	for _, u := range all {
		w.requestOf(u).units[u.id] = true
		for _, s := range u.texts {
			w.byRow[s].number = max(w.byRow[s].number, u.number)
		}
	}
	return all
}

// logged reports whether the log holds a unit of a request.
func (w *world) logged(r *request) bool {
	for _, u := range w.look() {
		if w.requestOf(u) == r {
			return true
		}
	}
	return false
}

// loggedWhole reports whether the log holds every part of a request.
func (w *world) loggedWhole(r *request) bool {
	there := map[*part]bool{}
	for _, u := range w.look() {
		for _, s := range u.texts {
			there[w.byRow[s]] = true
		}
	}
	return !slices.ContainsFunc(r.parts, func(p *part) bool { return !there[p] })
}

// told reports whether the answer to a sending satisfied is.
func (r *request) told(is func(error) bool) bool {
	for _, s := range r.sendings {
		if s.answered && !s.undone && is(s.err) {
			return true
		}
	}
	return false
}

func (r *request) toldDone() bool { return r.told(func(err error) bool { return err == nil }) }

// refused reports whether the application knows every sending to be unapplied.
func (r *request) refused() bool {
	for _, s := range r.sendings {
		var end *bedsql.EndError
		if errors.As(s.err, &end) && len(end.Delivered) > 0 {
			return false // of a group, another part was refused
		}
		if isUndone(s.err) {
			return false // what was applied is undone
		}
		if !s.answered || !s.undone && (s.err == nil || errors.Is(s.err, bedsql.ErrPending) || errors.Is(s.err, bedsql.ErrUnknownOutcome) || errors.Is(s.err, bedsql.ErrNotCommitted)) {
			return false
		}
	}
	return len(r.sendings) > 0
}

// fail ends the history. The broken claim comes before the colon.
func (w *world) fail(claim, format string, args ...any) {
	panic(&failure{claim: claim, detail: fmt.Sprintf(format, args...)})
}

// check holds at every moment.
func (w *world) check() {
	defer w.checkOrder() // the log is read by then
	for _, r := range w.requests {
		w.once(r)
		if w.answers(r); r.kind.isHome() {
			w.home(r)
		}
		w.checkGroup(r)
	}
	w.checkRows()
	for _, u := range w.look() {
		if _, delivered := w.byJob.Load(u.id); delivered {
			w.delivered(u)
		}
		if w.least {
			continue // an earlier attempt may have applied it
		}
		was := w.parked[u.id]
		w.parked[u.id] = u.parked
		if !u.parked || was {
			continue
		}
		w.say("a log of %s is parked: %s", w.requestOf(u), u.lastError)
		for _, s := range u.texts {
			if p := w.byRow[s]; w.applied(p) > 0 && p.undoes == nil && p.request.most() == 1 {
				w.fail("an applied unit is parked", "%s, row %d: %s", p.request, p.id, u.lastError)
			}
		}
	}
}

func (w *world) delivered(u *logged) {
	for _, s := range u.texts {
		if p := w.byRow[s]; w.applied(p) == 0 && p.undoes == nil {
			w.fail("reported delivered and not applied", "%s, row %d, by the job", p.request, p.id)
		}
	}
}

// once claims: no write is applied twice, and writes in one group on a data source are applied
// together.
func (w *world) once(r *request) {
	for _, p := range r.parts {
		switch n := w.applied(p); {
		case w.least && !w.calm:
		case n > r.most():
			w.fail("applied twice", "%s, row %d: %d times", r, p.id, n)
		}
	}
	if r.kind.name == goesOn {
		return // see answers
	}
	for _, p := range r.parts[1:] {
		for _, q := range r.parts {
			if p.source == q.source && r.joins(p) && r.joins(q) && w.applied(p) != w.applied(q) {
				w.fail("a torn transaction", "%s: row %d is applied %d times and row %d %d times", r, q.id, w.applied(q), p.id, w.applied(p))
			}
		}
	}
}

// joins reports whether a part belongs together with others: the application did not undo
// it alone.
func (r *request) joins(p *part) bool {
	return !r.kind.isHome() && r.kind.name != goesBack || r.sendings[0].said[p]
}

const (
	goesOn       = "local transaction that goes on after errors"
	thatRead     = "local transaction that read"
	thatIsUndone = "local transaction that is rolled back"
)

// answers claims: the application's answers are true.
func (w *world) answers(r *request) {
	for _, s := range r.sendings {
		// A job may take entries committed with the application's rows before End does. Unlike a
		// real one, the simulated server does not wait for a lock.
		faster := r.kind.isHome() && errors.Is(s.err, bedsql.ErrPending) && errors.Is(s.err, txlog.ErrLeaseLost)
		// The log gives up a removal without a lease after 33 moments. A group whose entries are
		// locked by a job between those may need more.
		slow := r.group != "" && errors.Is(s.err, context.DeadlineExceeded)
		if w.calm && s.answered && s.err != nil && r.key == "" && !s.meant && !isRows(s.err) && !faster && !slow && !waited(s.err) {
			w.fail("told an error although nothing went wrong", "%s: %v", r, s.err)
		}
		if s.err != nil && s.answered && strings.Contains(s.err.Error(), "Duplicate entry") {
			w.fail("told refused by its own receipt", "%s: %v", r, s.err)
		}
	}
	if r.toldDone() {
		for _, s := range r.sendings {
			if !s.answered || s.err != nil {
				continue
			}
			for _, p := range r.parts {
				switch {
				case s.said[p] && w.applied(p) == 0:
					w.fail("told applied and is not", "%s, row %d", r, p.id)
				case !s.said[p] && len(r.sendings) == 1 && w.applied(p) == 1:
					w.fail("a torn transaction", "%s: row %d is applied whose statement failed", r, p.id)
				}
			}
		}
	}
	if r.refused() {
		for _, p := range r.parts {
			if w.applied(p) != 0 {
				w.fail("told not applied and is", "%s, row %d: %v", r, p.id, r.sendings[len(r.sendings)-1].err)
			}
		}
	}
}

// most is the number of permitted applications of a request: one, and one more for each sending at
// which its key might be forgotten. A sending does not count if its answer shows that the key was
// remembered, unless a sending beside it was applied.
func (r *request) most() (n int64) {
	n = 1
	for _, s := range r.sendings {
		isApplied := func(s *sending) bool { return s.err != nil || !s.replayed }
		if s.late && (isApplied(s) || slices.ContainsFunc(s.beside, isApplied)) {
			n++
		}
	}
	return n
}

// mayCome reports whether a request may be sent again: its key is kept for the
// retention, and for as long as a log under it is there; of a group each data
// source has its own.
func (w *world) mayCome(r *request) bool {
	return r.key != "" && (time.Since(r.first) < retention*9/10 || !r.kind.spans() && w.logged(r))
}

// settle lets everything come to its end: all faults are over.
func (w *world) settle() {
	w.say("all faults are over")
	for _, s := range append(slices.Clone(w.servers), w.database) {
		if s != nil && s.down {
			w.rise(s)
		}
	}
	w.end()
	w.check()
	for range w.random.IntN(4) {
		w.rounds(2 * lease) // receipts that are kept for too short a time go
	}
	for _, r := range w.requests {
		if w.mayCome(r) && !r.discarded {
			waits := r.kind.isHome() && w.logged(r) // what an earlier one recorded
			w.sendIt(r, w.apps[1], false)           // the connections of one that never tries again may be cut
			w.end()
			w.check()
			if s := r.sendings[len(r.sendings)-1]; s.err != nil && !(waits && errors.Is(s.err, bedsql.ErrPending)) {
				w.fail("told nothing certain although all is well", "%s: %v", r, s.err)
			}
		}
	}
	if w.focus.isHome() && !w.focus.isOrdered() {
		for _, k := range withKinds[:2] {
			r := w.request(k, bedsql.LogBefore)
			w.sendIt(r, w.apps[1], false) // as above
			w.end()
			if w.check(); r.sendings[0].err != nil {
				w.fail("told nothing certain although all is well", "%s: %v", r, r.sendings[0].err)
			}
		}
	}
	for range 4 {
		w.rounds(2 * lease)
	}
	// A parked entry stays for longer than receipts are kept. Then an operator retries it.
	for range 3 {
		w.rounds(retention + lease)
	}
	for range 2 {
		for _, u := range w.look() {
			if u.parked {
				w.repair(w.requestOf(u))
				w.begin("operator", w.people, func(ctx context.Context) { _ = w.people.log.Retry(ctx, u.id) })
				w.end()
			}
		}
		w.rounds(2 * lease)
		w.rounds(2 * lease)
	}
	for _, u := range w.look() {
		r := w.requestOf(u)
		if !u.parked {
			w.fail("still in the log", "%s: %s", r, u.lastError)
		}
		// A single message notes in the receipt that the caller knows. That message may be lost.
		void := r.refused() && u.lastError == dialect.ErrVoided.Error()
		rows := r.differs() && strings.Contains(u.lastError, refusesRows)
		if u.notReplayable == "" && !void && !rows && !r.halfCompensated() {
			w.fail("parked although all is well", "%s: %s", r, u.lastError)
		}
	}
	for _, r := range w.requests {
		w.settled(r)
		w.rowsSettled(r)
	}
}

func (w *world) rounds(d time.Duration) {
	w.pass(d, false)
	for n := range w.jobs {
		if n != w.lost {
			w.round(n)
			w.end()
			w.check()
		}
	}
}

// leftOpen reports whether the log may be empty although the write is not applied, because the
// log's answer to its caller was uncertain.
func (s *sending) leftOpen() bool {
	return errors.Is(s.err, txlog.ErrInDoubt) || errors.Is(s.err, bedsql.ErrUnknownOutcome)
}

// promised is the error that left a part to the job, if any.
func (r *request) promised(p *part) error {
	for _, s := range r.sendings {
		if s.answered && !s.undone && errors.Is(s.err, bedsql.ErrPending) && !s.leftOpen() && (s.said[p] || !r.kind.local) {
			return s.err
		}
	}
	return nil
}

// settled claims: writes left to the job are applied, and groups are applied as a whole, on all
// data sources.
func (w *world) settled(r *request) {
	if r.discarded || w.logged(r) {
		return
	}
	if r.turns() {
		w.groupSettled(r)
		return
	}
	if r.kind.isHome() {
		w.homeSettled(r)
	}
	for _, p := range r.parts {
		switch {
		case w.applied(p) == 0 && r.promised(p) != nil:
			w.fail("pending, its entry gone and not applied", "%s, row %d: %v", r, p.id, r.promised(p))
		case r.kind.name != goesOn && !r.kind.isHome() && r.joins(p) && (p.source == r.parts[0].source || !r.differs()) && (w.applied(p) > 0) != (w.applied(r.parts[0]) > 0):
			w.fail("a group half applied", "%s: rows %d and %d are not the same", r, p.id, r.parts[0].id)
		}
	}
}

// rowsAtLog reports whether a request's rows in the log's database are committed. known reports
// that there are such rows.
func (w *world) rowsAtLog(r *request) (committed, known bool) {
	for _, p := range r.parts {
		if p.source == atLog && r.said(p) {
			return w.applied(p) > 0, true
		}
	}
	return false, false
}

// home claims at every moment: entries take effect only after a commit of the rows beside them.
func (w *world) home(r *request) {
	for _, p := range r.parts {
		committed, known := w.rowsAtLog(r)
		switch n := w.applied(p); {
		case n > 0 && !r.said(p):
			w.fail("told not applied and is", "%s, row %d: it was not recorded, or was rolled back to a savepoint", r, p.id)
		case n > 0 && known && !committed:
			w.fail("an entry delivered whose transaction is not committed", "%s, row %d", r, p.id)
		case n > 0:
			continue
		}
		for _, s := range r.sendings {
			var end *bedsql.EndError
			switch isEnd := s.answered && errors.As(s.err, &end); {
			case s.said[p] && p.source == atLog && s.committed:
				w.fail("told applied and is not", "%s, row %d: Commit succeeded", r, p.id)
			case s.said[p] && isEnd && slices.Contains(end.Delivered, w.server(p.source).name):
				w.fail("told applied and is not", "%s, row %d, of a data source that End calls delivered: %v", r, p.id, s.err)
			}
		}
	}
}

// said reports whether the statement of a part succeeded in any sending.
func (r *request) said(p *part) bool {
	return slices.ContainsFunc(r.sendings, func(s *sending) bool { return s.said[p] })
}

// homeSettled claims: in the end, entries with committed rows beside them have taken effect.
func (w *world) homeSettled(r *request) {
	committed, known := w.rowsAtLog(r)
	for _, p := range r.parts {
		if known && r.said(p) && (w.applied(p) > 0) != committed {
			w.fail("a group half applied", "%s: its transaction is committed (%t), and row %d is applied %d times", r, committed, p.id, w.applied(p))
		}
	}
}

// checkRows claims at every moment: a write with a required number of rows changes that number or
// none.
func (w *world) checkRows() {
	first := map[int]int64{}
	for _, r := range w.requests {
		for _, p := range r.parts {
			n := w.applied(p)
			if p.need == theGate {
				first[p.source] += n
			}
			if p.need == otherRows && (n > 0 || w.server(p.source).effect(p.beside) > 0) {
				w.fail("applied although its rows differ", "%s, row %d", r, p.id)
			}
		}
		for _, s := range r.sendings {
			if s.answered && isRows(s.err) && !r.differs() {
				w.fail("refused although its rows do not differ", "%s: %v", r, s.err)
			}
			w.refusedParts(r, s)
		}
	}
	for source, gate := range w.gates {
		if n := w.server(source).effect(gate); n != first[source] || n > 1 {
			w.fail("applied although its rows differ", "of %s %d writes were the first, and %d say so", w.server(source).name, first[source], n)
		}
	}
}

// refusedParts claims: a part reported by End as refused is not applied, and the rest of its group
// is as it would be without it.
func (w *world) refusedParts(r *request, s *sending) {
	var end *bedsql.EndError
	if !s.answered || !errors.As(s.err, &end) {
		return
	}
	for _, err := range end.Errors {
		var refused *bedsql.RefusedError
		if !errors.As(err, &refused) {
			continue
		}
		for _, p := range r.parts {
			if n := w.applied(p); n > 0 && w.server(p.source).name == refused.DataSource {
				w.fail("told not applied and is", "%s, row %d: %v", r, p.id, err)
			}
		}
	}
}

// rowsSettled claims: in the end, a part with the required rows is applied even if the other part
// of its group was refused, and so was logged with it.
func (w *world) rowsSettled(r *request) {
	if len(r.sendings) == 0 || r.turns() || !r.kind.spans() || !r.differs() || r.discarded || !strings.Contains(r.kind.name, "group") {
		return
	}
	if s := r.sendings[0]; s.answered && isRows(s.err) {
		if last := r.parts[len(r.parts)-1]; w.applied(last) == 0 {
			w.fail("a refused part of a group took another with it", "%s, row %d: %v", r, last.id, s.err)
		}
	}
}

// checkOrder claims at every moment: under one key, no write takes effect after one that the log
// accepted later.
func (w *world) checkOrder() {
	for source, s := range w.servers {
		latest := map[string]*part{}
		for _, id := range s.changed {
			p := w.byID[id]
			if p == nil || p.request.order == "" {
				continue
			}
			key := p.request.order
			if last := latest[key]; last != nil && last.number > p.number {
				w.fail("an older write came after a newer one", "%s, row %d of source %d, after %s, row %d", p.request, p.id, source, last.request, last.id)
			}
			latest[key] = p
		}
	}
}

// checkGroup claims at every moment: compensations run once, only after their parts, and never by
// half on a data source; and the reports of End are true.
func (w *world) checkGroup(r *request) {
	for _, p := range r.parts {
		switch n := w.undone(p); {
		case n > 1:
			w.fail("undone twice", "%s, row %d", r, p.id)
		case n > w.applied(p):
			w.fail("undone and not applied", "%s, row %d is applied %d times and undone %d times", r, p.id, w.applied(p), n)
		case n > 0 && !r.said(p.undo):
			w.fail("undone by what was not recorded", "%s, row %d", r, p.id)
		case n > 0 && r.toldDone():
			w.fail("told done and is undone", "%s, row %d", r, p.id)
		case n == 0 && w.applied(p) > 0 && p.undo != nil && r.said(p.undo) && r.told(isUndone):
			w.fail("told undone and is not", "%s, row %d", r, p.id)
		}
		for _, q := range r.parts {
			if p.source == q.source && p.undo != nil && q.undo != nil && r.said(p.undo) && r.said(q.undo) && w.undone(p) != w.undone(q) {
				w.fail("a part half compensated", "%s: of rows %d and %d one is undone", r, p.id, q.id)
			}
		}
	}
	for _, s := range r.sendings {
		var end *bedsql.EndError
		if !s.answered || !errors.As(s.err, &end) {
			continue
		}
		for _, p := range r.parts {
			named, isOwn := slices.Contains(end.Delivered, w.server(p.source).name), r.kind.isHome() && p.source == atLog
			switch n := w.applied(p); {
			case named && n == 0 && s.said[p]:
				w.fail("told applied and is not", "%s, row %d, of a data source that End calls delivered: %v", r, p.id, s.err)
			case isUndone(s.err) && !named && n > 0 && !r.undoes(p.source) && !isOwn:
				w.fail("told undone and is not", "%s, row %d, which nothing undoes and End does not name", r, p.id)
			}
		}
	}
}

// groupSettled claims: in the end, a group is applied as a whole, or compensated as far as
// possible, for a reason.
func (w *world) groupSettled(r *request) {
	done, undone, promised := true, true, false
	for _, p := range r.parts {
		if !r.said(p) {
			continue
		}
		n := w.applied(p)
		promised = promised || r.promised(p) != nil
		done = done && n == 1 && w.undone(p) == 0
		undone = undone && (p.undo == nil || !r.said(p.undo) || n == w.undone(p))
	}
	committed, known := w.rowsAtLog(r)
	switch {
	case !done && !undone:
		w.fail("a group half compensated", "%s", r.tells(w))
	case !done && !r.mayTurn() && !w.denied && (promised || r.kind.isHome() && known && committed):
		w.fail("a group not done without a reason", "%s", r.tells(w))
	}
}
