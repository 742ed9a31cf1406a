package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

const (
	// searchFor bounds a search. Its results by then make a page.
	searchFor = 500 * time.Millisecond
	// narrowRows is the largest number of index rows to read and sort instead of walking through
	// the table.
	narrowRows = 20_000
	// firstStep and mostStep bound the table rows in one step of a search.
	firstStep, mostStep = 5_000, 80_000
	// stepFor is the aim for the duration of a step.
	stepFor = 80 * time.Millisecond
	// judgedAtOnce is the number of units to read and judge at once.
	judgedAtOnce = 256
	// maxText is the greatest length of a filter's text.
	maxText = 1024
)

// Check refuses an impossible filter: ErrInvalid.
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

// where is a condition and its parameters.
type where struct {
	text string
	args []any
	// down orders the rows newest first.
	down bool
}

func (w *where) ordered() string {
	if w.down {
		return w.text + ` ORDER BY id DESC`
	}
	return w.text + ` ORDER BY id`
}

func (w *where) and(text string, args ...any) {
	w.text += " AND " + text
	w.args = append(w.args, args...)
}

func (w *where) andIf(given bool, text string, arg any) {
	if given {
		w.and(text, arg)
	}
}

// conditions returns the parts of the filter that SQL can test on a row. judge tests the rest.
func (s *Store) conditions(f *Filter) where {
	w := where{text: "1 = 1"}
	w.andIf(f.DataSource != "", `data_source = ?`, f.DataSource)
	switch f.State {
	case Parked:
		w.and(`parked = 1`)
	case Leased:
		w.and(`parked = 0 AND lease_token IS NOT NULL AND next_try_time > {now} AND next_try_time < ?`, entry.WaitsFrom)
	case Waiting:
		w.and(`parked = 0 AND (lease_token IS NULL OR next_try_time <= {now} OR next_try_time >= ?)`, entry.WaitsFrom)
	case "":
		w.andIf(f.settled, `(parked = 1 OR lease_token IS NULL OR next_try_time <= {now} OR next_try_time >= ?)`, entry.WaitsFrom)
	}
	w.andIf(f.Transaction != "", `transaction_id = ?`, f.Transaction)
	w.andIf(f.OlderThan > 0, `creation_time <= {now} - ?`, f.OlderThan.Milliseconds())
	ofSQL := false
	if f.Kind != "" {
		k, _ := readKind(f.Kind)
		w.and(`data_source = ?`, k.DataSource)
		if ofSQL = k.Code == ofText; ofSQL {
			w.and(s.contains(`{sql}`), k.words())
		} else {
			w.and(s.contains(`last_error`), longest(k.Text))
		}
	}
	switch {
	case f.Text == "" && ofSQL:
		return w
	case f.Text == "":
		w.and(`statement_no = 0`)
		return w
	}
	inError := f.Text
	if !f.Reveal {
		inError = longest(f.Text)
	}
	w.and(`(`+s.contains(`{sql}`)+` OR `+s.contains(`last_error`)+`)`, f.Text, inError)
	return w
}

// contains returns a condition: column holds a text, byte for byte. Every non-NULL value holds the
// empty text.
func (s *Store) contains(column string) string {
	return s.journal.Flavor.Pick(sqltext.Texts{MySQL: `INSTR(` + column + `, CAST(? AS BINARY)) > 0`, Postgres: `strpos(` + column + `, ?) > 0`, SQLite: `instr(` + column + `, ?) > 0`})
}

// longest returns the longest piece between masks in a masked text. The unmasked text contains that
// piece verbatim.
func longest(masked string) (part string) {
	for piece := range strings.SplitSeq(masked, mask) {
		if len(piece) > len(part) {
			part = piece
		}
	}
	return part
}

// judged reports whether conditions are not decisive alone, or may match several rows of a unit.
func (f *Filter) judged() bool { return f.Kind != "" || f.Text != "" }

// judge completes the selection of a unit found by conditions: its SQL or its error, as shown, must
// contain the text.
func (f *Filter) judge(u *entry.Unit) bool {
	if f.Kind != "" {
		k, err := readKind(f.Kind)
		if ok := kindOf(u) == k || k.Code == ofText && k.holding(u) >= 0; err != nil || !ok {
			return false
		}
	}
	inSQL := func(s entry.Statement) bool { return strings.Contains(s.SQL, f.Text) }
	return f.Text == "" || f.Reveal || slices.ContainsFunc(u.Statements, inSQL) || strings.Contains(maskedError(u), f.Text)
}

// find searches a page, until about end; the zero time is no end. It returns the ids of units in
// order, and the next position, which is empty at the end.
func (s *Store) find(ctx context.Context, f *Filter, p Page, end time.Time) (ids []string, next string, err error) {
	after, err := s.sweep(ctx, f, p, firstStep, func(rows where, _ int) (bool, error) {
		left := p.Limit - len(ids)
		part, more, err := s.unitsOf(ctx, f, rows, left, end)
		ids, next = append(ids, part...), more
		return len(part) == left || more != "" || over(end), err
	})
	return ids, cmp.Or(next, after), err
}

// sweep goes through the rows of units that f may select, from the start of a page. It passes do a
// part of them, as the text after the table's name in a query, and the number of table rows read so
// far. do may end the sweep early; next is then the position to continue from. A few rows in the
// index of due units make one part. Otherwise sweep reads the table in id order, at least least
// rows at a time, so that a search can end in time even between distant matches.
func (s *Store) sweep(ctx context.Context, f *Filter, p Page, least int, do func(rows where, seen int) (enough bool, err error)) (next string, err error) {
	if err := f.Check(); err != nil {
		return "", err
	}
	if _, err := readKind(f.Kind); err != nil && f.Kind != "" {
		return "", err
	}
	r := span{above: max(headOf(p.After), timeOf(f.Transaction))} // the units of a soft transaction are made after it
	if p.Newest {
		r = span{above: timeOf(f.Transaction), below: p.After, down: true}
	}
	w := s.conditions(f)
	narrow, err := s.narrow(ctx, f)
	if err != nil {
		return "", err
	}
	if narrow {
		w.text = s.force("transaction_log_due") + ` WHERE parked IN (0, 1) AND ` + w.text
		_, err := do(r.of(w), 0)
		return "", err
	}
	w.text = s.force("PRIMARY") + ` WHERE ` + w.text
	for size, seen := least, 0; ; {
		began := time.Now()
		rows, last, err := s.step(ctx, w, &r, size)
		if err != nil {
			return "", err
		}
		seen += size
		switch enough, err := do(rows, seen); {
		case err != nil || last:
			return "", err
		case enough && r.down:
			return r.below, nil
		case enough:
			return r.above, nil
		}
		if took := time.Since(began); took < stepFor/2 {
			size = min(2*size, mostStep)
		} else if took > 2*stepFor {
			size = max(size/2, least)
		}
	}
}

// A span is the rows with ids strictly between two others; empty means no bound. A sweep goes
// through it upwards, or down.
type span struct {
	above, below string
	down         bool
}

// of narrows conditions to the span, in its order.
func (r span) of(w where) where {
	rows := where{w.text, slices.Clone(w.args), r.down}
	rows.and(`id > ?`, r.above)
	rows.andIf(r.below != "", `id < ?`, r.below)
	return rows
}

// force makes MySQL use an index.
func (s *Store) force(index string) string {
	return s.journal.Flavor.Pick(sqltext.Texts{MySQL: ` FORCE INDEX (` + index + `)`, Postgres: ``, SQLite: ``})
}

// step narrows conditions to the next rows of a span, about size of them, and moves the start of
// the span past them. last reports that no rows follow.
func (s *Store) step(ctx context.Context, w where, r *span, size int) (rows where, last bool, err error) {
	from := r.of(where{text: `SELECT id FROM transaction_log WHERE 1 = 1`, down: r.down})
	to, err := s.texts(ctx, from.ordered()+` LIMIT 1 OFFSET ?`, append(from.args, size-1)...)
	if err != nil || len(to) == 0 {
		return r.of(w), true, err
	}
	rows = r.of(w)
	if r.down { // a unit is not parted
		r.below = heads(to)[0]
		rows.and(`id >= ?`, r.below)
	} else {
		r.above = headOf(to[0])
		rows.and(`id <= ?`, r.above)
	}
	return rows, false, nil
}

// narrow reports whether few rows match the filter's data source and state, so that sorting them is
// cheap.
func (s *Store) narrow(ctx context.Context, f *Filter) (bool, error) {
	name := f.DataSource
	if k, err := readKind(f.Kind); err == nil && name == "" {
		name = k.DataSource
	}
	if f.State == "" && name == "" {
		return false, nil
	}
	left := narrowRows
	for parked := range 2 {
		if f.State != "" && (f.State == Parked) != (parked == 1) {
			continue
		}
		w := where{text: `parked = ?`, args: []any{parked}}
		w.andIf(name != "", `data_source = ?`, name)
		n := 0
		if err := s.row(ctx, []any{&n}, `SELECT COUNT(*) FROM (SELECT 1 AS one FROM transaction_log`+s.force("transaction_log_due")+` WHERE `+w.text+`
  ORDER BY parked, data_source, next_try_time LIMIT ?) AS t`, append(w.args, left+1)...); err != nil {
			return false, err
		}
		if left -= n; left < 0 {
			return false, nil
		}
	}
	return true, nil
}

// unitsOf returns the units of rows selected by the filter, up to limit and until about end.
// The results are those of find.
func (s *Store) unitsOf(ctx context.Context, f *Filter, rows where, limit int, end time.Time) (found []string, next string, err error) {
	rows.text = rows.ordered()
	if !f.judged() {
		rows.text += ` LIMIT ?`
		rows.args = append(rows.args, limit+1)
	}
	ids, err := s.texts(ctx, `SELECT id FROM transaction_log`+rows.text, rows.args...)
	switch {
	case err != nil:
		return nil, "", err
	case !f.judged() && len(ids) > limit:
		return ids[:limit], ids[limit-1], nil
	case !f.judged():
		return ids, "", nil
	}
	ids = heads(ids)
	for portion := range slices.Chunk(ids, judgedAtOnce) {
		units, err := s.sql.Units(ctx, portion)
		if err != nil {
			return nil, "", err
		}
		if rows.down {
			slices.Reverse(units)
		}
		for _, u := range units {
			if !f.judge(u) {
				continue
			}
			if len(found) == limit {
				return found, found[limit-1], nil
			}
			found = append(found, u.ID)
		}
		if last := portion[len(portion)-1]; over(end) && last != ids[len(ids)-1] {
			return found, last, nil
		}
	}
	return found, "", nil
}

func over(end time.Time) bool { return !end.IsZero() && time.Now().After(end) }

// timeOf returns a lower bound of the ids made after id: its milliseconds alone, as a shorter text
// sorts before. It is empty for other ids than UUIDv7.
func timeOf(id string) string {
	if len(id) != 36 || id[14] != '7' {
		return ""
	}
	return id[:14]
}

// headOf returns the greatest possible row id of a unit. Any greater id belongs to another unit.
func headOf(after string) string {
	if len(after) != 36 {
		return after
	}
	return after[:33] + "fff"
}

// heads turns sorted row ids into the ids of their units.
func heads(rows []string) (ids []string) {
	for _, id := range rows {
		ids = append(ids, entry.HeadID(id))
	}
	return slices.Compact(ids)
}
