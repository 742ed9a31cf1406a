package ops

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/base64"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog"
)

// kind is what makes errors alike.
type kind struct{ DataSource, Code, Text string }

// maxKindText is how much of an error distinguishes its kind.
const maxKindText = 300

var (
	// codes are how drivers say the database's code.
	codes = []*regexp.Regexp{
		regexp.MustCompile(`Error (\d+) \(\w{5}\)`),
		regexp.MustCompile(`\(SQLSTATE (\w{5})\)`),
		regexp.MustCompile(`\((\d+)\)$`),
	}
	// network are errors of a connection: they quote addresses and no parameters. A
	// parameter such as 1 would be masked in an address all the same, and make the
	// errors of two units differ.
	network = regexp.MustCompile(`\b(dial|read|write) (tcp|udp|unix)\b`)
	// differing are numbers that change from error to error: a port of this
	// machine, a process, a transaction, a time.
	differing = regexp.MustCompile(`:\d{4,5}->|\b\d{6,}\b|\b0x[0-9a-fA-F]{4,}\b|\b[Pp]rocess \d+`)
)

// kindOf is the kind of a unit's last error.
func kindOf(u *txlog.Unit) kind {
	masked := maskText(u.LastError, nil)
	if !network.MatchString(u.LastError) {
		masked = maskedError(u)
	}
	return kind{u.DataSource, codeOf(u.LastError), likeText(masked)}
}

func codeOf(text string) string {
	for _, code := range codes {
		if m := code.FindStringSubmatch(text); m != nil {
			return m[1]
		}
	}
	return ""
}

// likeText takes out of a masked error what changes from one to the next.
func likeText(masked string) string {
	text := differing.ReplaceAllStringFunc(masked, func(s string) string {
		switch {
		case strings.HasSuffix(s, "->"):
			return ":" + mask + "->"
		case strings.HasPrefix(strings.ToLower(s), "process "):
			return s[:len("process ")] + mask
		}
		return mask
	})
	if len(text) > maxKindText {
		text = strings.ToValidUTF8(text[:maxKindText], "")
	}
	return text
}

// key is the kind for Filter.Kind.
func (k kind) key() string {
	return base64.RawURLEncoding.EncodeToString([]byte(k.DataSource + "\x00" + k.Code + "\x00" + k.Text))
}

func readKind(key string) (kind, error) {
	text, err := base64.RawURLEncoding.DecodeString(key)
	parts := strings.SplitN(string(text), "\x00", 3)
	if err != nil || len(parts) != 3 {
		return kind{}, fmt.Errorf("%w: the kind of error is none that a list of kinds gave", ErrInvalid)
	}
	return kind{parts[0], parts[1], parts[2]}, nil
}

// KindText gives the error of a kind, with its values masked, and its data source, by its
// key. ErrInvalid.
func KindText(key string) (text, dataSource string, err error) {
	k, err := readKind(key)
	return k.Text, k.DataSource, err
}

// wholeRows is how many rows are grouped however long that takes; of a larger
// log, as many as half a second reaches.
const wholeRows = 100_000

// Kinds groups the entries that f selects and that have an error: all of them where f
// has no text and the log no more than 100,000 rows, and else at least as many as half a
// second reaches. More says that there are others.
func (s *finder) Kinds(ctx context.Context, f Filter) (*Kinds, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	alike := map[kind]*same{}
	out := &Kinds{Kinds: []Kind{}}
	searched := !f.firstRows()
	var err error
	if !searched {
		_, searched, err = s.narrow(ctx, &f)
	}
	switch {
	case err != nil:
	case searched:
		out.More, err = s.groupFound(ctx, f, alike)
	default:
		out.More, err = s.groupAll(ctx, &f, alike)
	}
	if err != nil {
		return nil, err
	}
	groups, err := s.masked(ctx, alike)
	if err != nil {
		return nil, err
	}
	for k, g := range groups {
		g.Key, g.DataSource, g.Code, g.Text, g.More = k.key(), k.DataSource, k.Code, k.Text, out.More
		out.Kinds = append(out.Kinds, *g)
	}
	slices.SortFunc(out.Kinds, func(a, b Kind) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Oldest, b.Oldest)) })
	return out, nil
}

// same are units of a data source whose errors are alike except for what a
// database quotes.
type same struct {
	count, created int64
	first          string
}

// groupAll goes through the table and has the database distinguish the texts.
// more reports that it did not reach the end.
func (s *finder) groupAll(ctx context.Context, f *Filter, alike map[kind]*same) (more bool, err error) {
	w := s.conditions(f)
	w.and(`last_error IS NOT NULL`)
	end := time.Now().Add(s.groupFor)
	after := ""
	if f.Transaction > "" {
		after = before(f.Transaction, "")
	}
	for size, seen := 4*firstChunk, 0; ; size = min(2*size, mostChunk) {
		bound, last, err := s.step(ctx, w, &after, size)
		if err != nil {
			return false, err
		}
		if err := s.group(ctx, s.d.Pick(sqltext.Texts{MySQL: ` FORCE INDEX (PRIMARY)`, Postgres: ``, SQLite: ``})+` WHERE `+bound.text, bound.args, alike); err != nil {
			return false, err
		}
		if seen += size; last {
			return false, nil
		}
		if seen >= s.whole && over(end) {
			return true, nil
		}
	}
}

// groupFound groups what a search finds.
func (s *finder) groupFound(ctx context.Context, f Filter, alike map[kind]*same) (more bool, err error) {
	return s.search(ctx, f, searchFor, func(ids []string) (bool, error) {
		for portion := range slices.Chunk(ids, 500) {
			condition, args := in(portion)
			if err := s.group(ctx, ` WHERE `+condition+` AND last_error IS NOT NULL`, args, alike); err != nil {
				return false, err
			}
		}
		return false, nil
	})
}

// group adds the rows of a condition to those that are alike.
func (s *finder) group(ctx context.Context, where string, args []any, alike map[kind]*same) error {
	return s.each(ctx, func(rows *sql.Rows) error {
		var name, text, first string
		var n, created int64
		if err := rows.Scan(&name, &text, &n, &first, &created); err != nil {
			return err
		}
		k := kind{name, codeOf(text), likeText(maskText(text, nil))}
		t := alike[k]
		if t == nil {
			t = &same{first: first, created: created}
			alike[k] = t
		}
		t.count += n
		if first < t.first {
			t.first, t.created = first, created
		}
		return nil
	}, `SELECT data_source, last_error, COUNT(*), MIN(id), MIN(creation_time) FROM transaction_log`+where+` GROUP BY data_source, last_error`, args...)
}

// masked makes the kinds of what is alike: of each the first unit is read, for
// its parameters, which are masked too.
func (s *finder) masked(ctx context.Context, alike map[kind]*same) (map[kind]*Kind, error) {
	groups := map[kind]*Kind{}
	byFirst := make(map[string]*same, len(alike))
	for _, t := range alike {
		byFirst[t.first] = t
	}
	for portion := range slices.Chunk(slices.Sorted(maps.Keys(byFirst)), judgedAtOnce) {
		units, err := s.log.Units(ctx, portion)
		if err != nil {
			return nil, err
		}
		for _, u := range units {
			if u.LastError == "" {
				continue // it changed meanwhile
			}
			k, t := kindOf(u), byFirst[u.ID]
			g := groups[k]
			if g == nil {
				g = &Kind{Oldest: t.first, CreatedAt: time.UnixMilli(t.created)}
				groups[k] = g
			}
			g.Count += int(t.count)
			if t.first < g.Oldest {
				g.Oldest, g.CreatedAt = t.first, time.UnixMilli(t.created)
			}
		}
	}
	return groups, nil
}
