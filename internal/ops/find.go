package ops

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog"
)

const (
	// searchFor bounds how long a search takes: what it has found by then makes a
	// page.
	searchFor = 500 * time.Millisecond
	// noLimit is for a search that ends when there is no more.
	noLimit = time.Duration(0)
	// narrowRows is up to how many rows of the index are read and sorted instead
	// of walking through the table.
	narrowRows = 20_000
	// firstChunk and mostChunk are how many rows of the table a step of a walk goes
	// through.
	firstChunk, mostChunk = 5_000, 80_000
	// chunkFor is how long a step should take.
	chunkFor = 80 * time.Millisecond
	// maxText is how long the text of a filter can be.
	maxText = 1024
)

// Check refuses a filter that cannot be meant: ErrInvalid.
func (f *Filter) Check() error {
	switch f.State {
	case "", Waiting, Leased, Parked:
	default:
		return fmt.Errorf("%w: the state is %.40q, but must be waiting, leased or parked", ErrInvalid, f.State)
	}
	for name, text := range map[string]string{"data source": f.DataSource, "text": f.Text, "kind": f.Kind} {
		if !storable(text) || len(text) > maxText {
			return fmt.Errorf("%w: the %s must be valid UTF-8 without NUL, at most %d bytes", ErrInvalid, name, maxText)
		}
	}
	if !IsID(f.Transaction) {
		return fmt.Errorf("%w: transaction is not the id of one", ErrInvalid)
	}
	if f.OlderThan < 0 {
		return fmt.Errorf("%w: olderThan must not be negative", ErrInvalid)
	}
	return nil
}

// headRow is the condition on a row that it is the first of its unit, for queries
// that read only an index.
func (s *finder) headRow() string {
	return s.d.Pick(sqltext.Texts{MySQL: `RIGHT(id, 3) = '000'`, Postgres: `right(id, 3) = '000'`, SQLite: `substr(id, -3) = '000'`})
}

// where is a condition with its parameters.
type where struct {
	text string
	args []any
}

func (w *where) and(text string, args ...any) {
	w.text += " AND " + text
	w.args = append(w.args, args...)
}

// conditions are those of the filter that a row of the unit can be tested for.
// judge tests what they find for the rest.
func (s *finder) conditions(f *Filter) where {
	w := where{text: "1 = 1"}
	if f.DataSource != "" {
		w.and(`data_source = ?`, f.DataSource)
	}
	switch f.State {
	case Parked:
		w.and(`parked = 1`)
	case Leased:
		w.and(`parked = 0 AND lease_token IS NOT NULL AND next_try_time > {now}`)
	case Waiting:
		w.and(`parked = 0 AND (lease_token IS NULL OR next_try_time <= {now})`)
	case "":
		if f.settled {
			w.and(`(parked = 1 OR lease_token IS NULL OR next_try_time <= {now})`)
		}
	}
	if f.Transaction != "" {
		w.and(`transaction_id = ?`, f.Transaction)
	}
	if f.OlderThan > 0 {
		w.and(`creation_time <= {now} - ?`, f.OlderThan.Milliseconds())
	}
	if f.Kind != "" {
		k, _ := readKind(f.Kind)
		w.and(`data_source = ? AND statement_no = 0`, k.DataSource)
		if part := longest(k.Text); part == "" {
			w.and(`last_error IS NOT NULL`)
		} else {
			w.and(s.contains(`last_error`), part)
		}
	}
	switch part := longest(f.Text); {
	case f.Text == "" && f.Kind == "":
		w.and(`statement_no = 0`)
	case f.Text == "":
	case f.Reveal:
		w.and(`(`+s.contains(`{sql}`)+` OR `+s.contains(`last_error`)+`)`, f.Text, f.Text)
	case part == "":
		w.and(`(`+s.contains(`{sql}`)+` OR last_error IS NOT NULL)`, f.Text)
	default:
		w.and(`(`+s.contains(`{sql}`)+` OR `+s.contains(`last_error`)+`)`, f.Text, part)
	}
	return w
}

// contains is the condition that a column holds a text, byte for byte.
func (s *finder) contains(column string) string {
	return s.d.Pick(sqltext.Texts{MySQL: `INSTR(` + column + `, CAST(? AS BINARY)) > 0`, Postgres: `strpos(` + column + `, ?) > 0`, SQLite: `instr(` + column + `, ?) > 0`})
}

// longest gives the longest part of a masked text without a mask in it, which the
// unmasked text contains as it is.
func longest(masked string) (part string) {
	for piece := range strings.SplitSeq(masked, mask) {
		if len(piece) > len(part) {
			part = piece
		}
	}
	return part
}

// judged reports whether conditions alone do not decide.
func (f *Filter) judged() bool { return f.Kind != "" || f.Text != "" && !f.Reveal }

// firstRows reports whether the conditions find each unit once, and no other.
func (f *Filter) firstRows() bool { return f.Kind == "" && f.Text == "" }

// judge decides whether a unit that the conditions found is selected: its SQL, or
// its error as it is shown, has to contain the text.
func (f *Filter) judge(u *txlog.Unit) bool {
	if f.Kind != "" {
		if k, err := readKind(f.Kind); err != nil || kindOf(u) != k {
			return false
		}
	}
	if f.Text == "" || f.Reveal {
		return true
	}
	for _, statement := range u.Statements {
		if strings.Contains(statement.SQL, f.Text) {
			return true
		}
	}
	return strings.Contains(maskedError(u), f.Text)
}

// found is what a search gives: the ids of units in their order, and where it goes
// on; next is empty at the end.
type found struct {
	ids  []string
	next string
}

// find searches after the id after, for at most limit units and about budget.
func (s *finder) find(ctx context.Context, f Filter, after string, limit int, budget time.Duration) (found, error) {
	if err := f.Check(); err != nil {
		return found{}, err
	}
	if _, err := readKind(f.Kind); err != nil && f.Kind != "" {
		return found{}, err
	}
	end := time.Time{}
	if budget > 0 {
		end = time.Now().Add(budget)
	}
	after = headOf(after)
	if f.Transaction > after {
		// The units of a soft transaction are made after it.
		after = before(f.Transaction, after)
	}
	spans, narrow, err := s.narrow(ctx, &f)
	if err != nil {
		return found{}, err
	}
	if narrow {
		return s.findNarrow(ctx, &f, spans, after, limit, end)
	}
	return s.walk(ctx, &f, after, limit, end)
}

// search gives do what f selects, portion by portion, for about budget or until do has
// enough. more reports that it did not reach the end.
func (s *finder) search(ctx context.Context, f Filter, budget time.Duration, do func(ids []string) (enough bool, err error)) (more bool, err error) {
	end, left := time.Now().Add(budget), budget
	for after := ""; ; left = max(1, time.Until(end)) {
		if budget == noLimit {
			left = noLimit
		}
		found, err := s.find(ctx, f, after, countedAtOnce, left)
		if err != nil {
			return false, err
		}
		enough, err := do(found.ids)
		if after = found.next; err != nil || after == "" {
			return false, err
		}
		if enough || budget != noLimit && over(end) {
			return true, nil
		}
	}
}

// before gives an id that is less than all that can be made after id, by its time
// alone.
func before(id, otherwise string) string {
	if len(id) != len("00000000-0000-7000-8000-000000000000") || id[14] != '7' {
		return otherwise
	}
	return id[:14] // its milliseconds: shorter sorts before
}

// headOf gives the last id that the unit of a row can have, so that what follows is
// another unit's.
func headOf(after string) string {
	if len(after) != 36 {
		return after
	}
	return after[:33] + "fff"
}

// span is a range of the index of due units.
type span struct {
	parked     int
	dataSource string
}

// narrow finds out whether the filter's data source and state leave few enough units
// that they can be sorted.
func (s *finder) narrow(ctx context.Context, f *Filter) (spans []span, ok bool, err error) {
	if f.State == "" && f.DataSource == "" && f.Kind == "" {
		return nil, false, nil
	}
	name := f.DataSource
	if k, err := readKind(f.Kind); err == nil && name == "" {
		name = k.DataSource
	}
	rows := 0
	for parked := range 2 {
		if f.State != "" && (f.State == Parked) != (parked == 1) {
			continue
		}
		names := []string{name}
		if name == "" {
			if names, err = s.names(ctx, parked); err != nil {
				return nil, false, err
			}
		}
		for _, name := range names {
			n := 0
			if err := s.row(ctx, []any{&n}, `SELECT COUNT(*) FROM (SELECT 1 AS one FROM transaction_log`+s.due()+` WHERE parked = ? AND data_source = ?
  ORDER BY next_try_time LIMIT ?) AS t`, parked, name, narrowRows+1); err != nil {
				return nil, false, err
			}
			if rows += n; rows > narrowRows {
				return nil, false, nil
			}
			spans = append(spans, span{parked, name})
		}
	}
	return spans, true, nil
}

// due names the index of due units where the database accepts that.
func (s *finder) due() string {
	return s.d.Pick(sqltext.Texts{MySQL: ` FORCE INDEX (transaction_log_due)`, Postgres: ``, SQLite: ``})
}

// names gives the data sources that have parked units, or others, by steps
// through the index.
func (s *finder) names(ctx context.Context, parked int) (all []string, err error) {
	for last := ""; ; {
		var name *string
		if err := s.row(ctx, []any{&name}, `SELECT MIN(data_source) FROM transaction_log WHERE parked = ? AND data_source > ?`, parked, last); err != nil || name == nil {
			return all, err
		}
		all, last = append(all, *name), *name
	}
}

func (s *finder) findNarrow(ctx context.Context, f *Filter, spans []span, after string, limit int, end time.Time) (found, error) {
	w := s.conditions(f)
	w.and(`id > ?`, after)
	// What is judged one by one may lose some: all are read then.
	most := limit + 1
	if !f.firstRows() {
		most = narrowRows + 1
	}
	var rows []string
	for _, sp := range spans {
		args := append([]any{sp.parked, sp.dataSource}, w.args...)
		if err := s.texts(ctx, &rows, `SELECT id FROM transaction_log`+s.due()+` WHERE parked = ? AND data_source = ? AND `+w.text+` ORDER BY id LIMIT ?`, append(args, most)...); err != nil {
			return found{}, err
		}
	}
	slices.Sort(rows)
	return s.judgeAll(ctx, f, heads(rows), limit, end)
}

// judgeAll keeps those that the filter selects, up to limit.
func (s *finder) judgeAll(ctx context.Context, f *Filter, ids []string, limit int, end time.Time) (out found, err error) {
	if !f.judged() {
		if len(ids) > limit {
			return found{ids[:limit], ids[limit-1]}, nil
		}
		return found{ids: ids}, nil
	}
	for portion := range slices.Chunk(ids, judgedAtOnce) {
		units, err := s.log.Units(ctx, portion)
		if err != nil {
			return found{}, err
		}
		for _, u := range units {
			if !f.judge(u) {
				continue
			}
			if len(out.ids) == limit {
				out.next = out.ids[limit-1]
				return out, nil
			}
			out.ids = append(out.ids, u.ID)
		}
		if last := portion[len(portion)-1]; over(end) && last != ids[len(ids)-1] {
			out.next = last
			return out, nil
		}
	}
	return out, nil
}

// judgedAtOnce is how many units are read to be judged.
const judgedAtOnce = 256

func over(end time.Time) bool { return !end.IsZero() && time.Now().After(end) }

// heads turns ids of rows, sorted, into those of their units.
func heads(rows []string) (ids []string) {
	for _, id := range rows {
		if len(id) == 36 {
			id = id[:33] + "000"
		}
		if len(ids) == 0 || ids[len(ids)-1] != id {
			ids = append(ids, id)
		}
	}
	return ids
}

// walk goes through the table in the order of the ids, step by step, so that it can
// end in time wherever the next unit is.
func (s *finder) walk(ctx context.Context, f *Filter, after string, limit int, end time.Time) (out found, err error) {
	w := s.conditions(f)
	for size := firstChunk; ; {
		began := time.Now()
		bound, last, err := s.step(ctx, w, &after, size)
		if err != nil {
			return found{}, err
		}
		bound.text += ` ORDER BY id`
		if f.firstRows() {
			bound.text += ` LIMIT ?`
			bound.args = append(bound.args, limit-len(out.ids)+1)
		}
		var rows []string
		if err := s.texts(ctx, &rows, `SELECT id FROM transaction_log`+s.d.Pick(sqltext.Texts{MySQL: ` FORCE INDEX (PRIMARY)`, Postgres: ``, SQLite: ``})+` WHERE `+bound.text, bound.args...); err != nil {
			return found{}, err
		}
		part, err := s.judgeAll(ctx, f, heads(rows), limit-len(out.ids), end)
		if err != nil {
			return found{}, err
		}
		out.ids = append(out.ids, part.ids...)
		switch {
		case part.next != "":
			out.next = part.next
			return out, nil
		case last:
			return out, nil
		case len(out.ids) == limit:
			// The next page finds out whether there is another.
			out.next = after
			return out, nil
		case over(end):
			out.next = after
			return out, nil
		}
		if took := time.Since(began); took < chunkFor/2 {
			size = min(2*size, mostChunk)
		} else if took > 2*chunkFor {
			size = max(size/2, firstChunk/5)
		}
	}
}

// step narrows conditions to the next rows after after, about size of them, and
// moves after to their end. last reports that nothing follows them.
func (s *finder) step(ctx context.Context, w where, after *string, size int) (bound where, last bool, err error) {
	var to []string
	if err := s.texts(ctx, &to, `SELECT id FROM transaction_log WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?`, *after, size-1); err != nil {
		return where{}, false, err
	}
	bound = where{w.text, slices.Clone(w.args)}
	bound.and(`id > ?`, *after)
	if len(to) == 0 {
		return bound, true, nil
	}
	*after = headOf(to[0]) // a unit is not parted
	bound.and(`id <= ?`, *after)
	return bound, false, nil
}
