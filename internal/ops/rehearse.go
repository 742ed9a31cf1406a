package ops

import (
	"cmp"
	"context"
	"database/sql/driver"
	"fmt"
	"maps"
	"slices"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/errmask"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog"
)

// Rehearsal lists pending texts that their targets would refuse.
type Rehearsal struct {
	// Entries is the number of entries examined, Texts the number of distinct texts in them.
	Entries int `json:"entries"`
	Texts   int `json:"texts"`
	// Refused are the texts that would fail to prepare, by kind of error, the most frequent first.
	Refused []Misfit `json:"refused"`
	// Unseen are the texts that could not be checked.
	Unseen []Misfit `json:"unseen"`
	// More reports that some entries or texts were not examined.
	More bool `json:"more"`
}

// Misfit is a kind of error in the texts of a data source.
type Misfit struct {
	DataSource string `json:"dataSource"`
	// Code is the database's: "1054", "42703"; empty if unknown.
	Code string `json:"code"`
	// Text is the error, masked.
	Text string `json:"text"`
	// Entries is the number of entries with such a text, Texts the number of texts with this error.
	Entries int `json:"entries"`
	Texts   int `json:"texts"`
	// Oldest is the first of these entries.
	Oldest string `json:"oldest"`
	// Kinds are the texts, those in the most entries first, at most 20.
	Kinds []TextKind `json:"kinds"`
}

// TextKind is one text.
type TextKind struct {
	// Kind is for Filter.Kind: it selects the entries with this text.
	Kind string `json:"kind"`
	// SQL is the text without its values; empty for a data source without a configuration.
	SQL     string `json:"sql"`
	Entries int    `json:"entries"`
}

// mostTexts limits the listed texts of a kind of error.
const mostTexts = 20

// textKinds returns texts with the number of their entries.
func (s *Store) textKinds(texts []*pending) []TextKind {
	of := map[kind]*TextKind{}
	for _, p := range texts {
		k := textKind(p.dataSource, p.text)
		if of[k] == nil {
			of[k] = &TextKind{Kind: k.key()}
			if d := s.cfg.Targets[p.dataSource].Dialect; d != nil {
				of[k].SQL = sqltext.Mask(d.Flavor, p.text)
			}
		}
		of[k].Entries += len(p.entries)
	}
	all := []TextKind{}
	for _, k := range of {
		all = append(all, *k)
	}
	slices.SortFunc(all, func(a, b TextKind) int { return cmp.Or(cmp.Compare(b.Entries, a.Entries), cmp.Compare(a.SQL, b.SQL)) })
	return all[:min(len(all), mostTexts)]
}

const (
	// rehearsedEntries and rehearsedTexts limit a rehearsal.
	rehearsedEntries, rehearsedTexts = 1_000_000, 20_000
	// rehearsedInVain is the number of unanswered questions after which we ask the target no more.
	rehearsedInVain = 3
)

// pending is a text in its kind of session, with the entries that hold it.
type pending struct {
	place
	text    string
	unit    *entry.Unit
	entries []string
}

// Rehearse has the target of each waiting or parked entry prepare its texts, each text once and in
// the session of a job. It runs no statement and leaves no prepared one. dataSource names one;
// empty means all. Entries that must not be run again are left out. ErrUnknownDataSource, or an
// error of the log.
func (s *Store) Rehearse(ctx context.Context, dataSource string) (*Rehearsal, error) {
	r := &Rehearsal{Refused: []Misfit{}, Unseen: []Misfit{}}
	all, err := s.pendingTexts(ctx, dataSource, r)
	if err != nil {
		return nil, err
	}
	kinds := map[bool]map[kind][]*pending{true: {}, false: {}}
	for len(all) > 0 {
		n := slices.IndexFunc(all, func(p *pending) bool { return p.place != all[0].place })
		if n < 0 {
			n = len(all)
		}
		s.rehearse(ctx, all[:n], func(p *pending, refused bool, err error) {
			text := s.cfg.Clean(err.Error())
			k := kind{p.dataSource, codeOf(text), likeText(errmask.Mask(text))}
			kinds[refused][k] = append(kinds[refused][k], p)
		})
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		all = all[n:]
	}
	r.Refused, r.Unseen = s.misfits(kinds[true]), s.misfits(kinds[false])
	return r, nil
}

// pendingTexts returns the texts to prepare, sorted by session.
func (s *Store) pendingTexts(ctx context.Context, dataSource string, r *Rehearsal) (all []*pending, err error) {
	type key struct {
		place
		text string
		odd  bool
	}
	seen := map[key]*pending{}
	f := txlog.Filter{DataSource: dataSource}
	for {
		var units []*entry.Unit
		if err := s.answer(ctx, func(ctx context.Context) (err error) { units, err = s.log.List(ctx, f); return err }); err != nil {
			return nil, err
		}
		for _, u := range units {
			if f.After = u.ID; u.Leased && !u.Parked || u.NotReplayable != "" {
				continue
			}
			if r.Entries == rehearsedEntries {
				r.More = true
				return all, nil
			}
			r.Entries++
			for _, statement := range u.Statements {
				in := u
				if n := statement.Part - 1; u.Undo != nil && n >= 0 && n < len(u.Undo.Parts) {
					in = u.Part(n)
				}
				k := key{place{in.DataSource, in.Settings, in.Session}, statement.SQL, u.Unreadable != nil}
				p := seen[k]
				switch {
				case p == nil && len(all) == rehearsedTexts:
					r.More = true
					continue
				case p == nil:
					p = &pending{place: k.place, text: k.text, unit: in}
					seen[k], all = p, append(all, p)
				}
				if n := len(p.entries); n == 0 || p.entries[n-1] != u.ID {
					p.entries = append(p.entries, u.ID)
				}
			}
		}
		if len(units) == 0 {
			break
		}
	}
	if r.Texts = len(all); dataSource != "" && r.Entries == 0 {
		_, known := s.cfg.Targets[dataSource]
		if _, wrong := s.cfg.Problems[dataSource]; !known && !wrong {
			return nil, fmt.Errorf("%w: %q", ErrUnknownDataSource, dataSource)
		}
	}
	slices.SortStableFunc(all, func(a, b *pending) int {
		return cmp.Or(cmp.Compare(a.dataSource, b.dataSource), cmp.Compare(a.settings, b.settings), cmp.Compare(a.session, b.session))
	})
	return all, nil
}

// rehearse has a target prepare texts for the same session. It reports refused texts, and those it
// cannot ask about.
func (s *Store) rehearse(ctx context.Context, texts []*pending, report func(p *pending, refused bool, err error)) {
	target, err := s.cfg.target(texts[0].unit)
	if err != nil {
		for _, p := range texts {
			report(p, false, err)
		}
		return
	}
	l := &line{target: target, brief: true}
	defer l.close()
	inVain := 0
	for _, p := range texts {
		switch {
		case p.unit.Unreadable != nil:
			report(p, false, p.unit.Unreadable)
			continue
		case inVain == rehearsedInVain:
			report(p, false, err)
			continue
		}
		// SQLite runs some pragmas when they are prepared.
		if err := attempt.OnlyDML(ctx, target.Dialect, nil, []entry.Statement{{SQL: p.text}}); err != nil {
			report(p, true, err)
			continue
		}
		switch err = l.prepare(ctx, p.text, func(driver.Stmt) error { return nil }); {
		case err == nil:
		case l.conn != nil && target.Dialect.Class(err) == dialect.Refused:
			report(p, true, err)
		default:
			inVain++
			report(p, false, err)
		}
	}
}

// misfits counts the entries and the texts of each kind.
func (s *Store) misfits(kinds map[kind][]*pending) []Misfit {
	all := []Misfit{}
	for k, texts := range kinds {
		entries := map[string]bool{}
		for _, p := range texts {
			for _, id := range p.entries {
				entries[id] = true
			}
		}
		all = append(all, Misfit{k.DataSource, k.Code, k.Text, len(entries), len(texts), slices.Min(slices.Collect(maps.Keys(entries))), s.textKinds(texts)})
	}
	slices.SortFunc(all, func(a, b Misfit) int {
		return cmp.Or(cmp.Compare(b.Entries, a.Entries), cmp.Compare(a.Oldest, b.Oldest))
	})
	return all
}
