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

	"github.com/bedsql/bed/txlog"
)

// kind is what makes errors alike.
type kind struct{ DataSource, Code, Text string }

// maxKindText is how much of an error tells it from others.
const maxKindText = 300

var (
	// codes are how drivers say the database's code.
	codes = []*regexp.Regexp{
		regexp.MustCompile(`Error (\d+) \(\w{5}\)`),
		regexp.MustCompile(`\(SQLSTATE (\w{5})\)`),
		regexp.MustCompile(`\((\d+)\)$`),
	}
	// differing are numbers that differ from error to error: a port of this machine's, a
	// process, a transaction, a time.
	differing = regexp.MustCompile(`:\d{4,5}->|\b\d{6,}\b|\b0x[0-9a-fA-F]{4,}\b|\b[Pp]rocess \d+`)
)

// kindOf is the kind of a unit's last error.
func kindOf(u *txlog.Unit) kind {
	return kind{u.DataSource, codeOf(u.LastError), likeText(maskedError(u))}
}

func codeOf(text string) string {
	for _, code := range codes {
		if m := code.FindStringSubmatch(text); m != nil {
			return m[1]
		}
	}
	return ""
}

// likeText takes out of a masked error what differs from one to the next.
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

// likeRows is how many rows are looked at to group them.
const likeRows = 20_000

// Kinds groups the entries that f selects and that have an error. Up to 20,000 of them
// are looked at.
func (s *finder) Kinds(ctx context.Context, f Filter) (*Kinds, error) {
	end := time.Now().Add(searchFor)
	groups := map[kind]*Kind{}
	out := &Kinds{Kinds: []Kind{}}
	seen := 0
	for after := ""; ; {
		found, err := s.find(ctx, f, after, countedAtOnce, max(1, time.Until(end)))
		if err != nil {
			return nil, err
		}
		if err := s.group(ctx, found.ids, groups); err != nil {
			return nil, err
		}
		seen += len(found.ids)
		if after = found.next; after == "" {
			break
		}
		if seen >= likeRows || over(end) {
			out.More = true
			break
		}
	}
	for k, g := range groups {
		g.Key, g.DataSource, g.Code, g.Text, g.More = k.key(), k.DataSource, k.Code, k.Text, out.More
		out.Kinds = append(out.Kinds, *g)
	}
	slices.SortFunc(out.Kinds, func(a, b Kind) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Oldest, b.Oldest)) })
	return out, nil
}

// group adds units to the groups of their errors: the database tells the same
// texts apart, and of those that are alike but for what a database quotes only the
// first unit is read, for its parameters.
func (s *finder) group(ctx context.Context, ids []string, groups map[kind]*Kind) error {
	type same struct {
		count, created int64
		first          string
	}
	alike := map[kind]*same{}
	for portion := range slices.Chunk(ids, 500) {
		args := make([]any, len(portion))
		for i, id := range portion {
			args[i] = id
		}
		if err := s.each(ctx, func(rows *sql.Rows) error {
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
		}, `SELECT data_source, last_error, COUNT(*), MIN(id), MIN(creation_time) FROM transaction_log
  WHERE id IN (`+strings.Repeat("?, ", len(portion)-1)+`?) AND last_error IS NOT NULL GROUP BY data_source, last_error`, args...); err != nil {
			return err
		}
	}
	byFirst := make(map[string]*same, len(alike))
	for _, t := range alike {
		byFirst[t.first] = t
	}
	for portion := range slices.Chunk(slices.Sorted(maps.Keys(byFirst)), judgedAtOnce) {
		units, err := s.log.Units(ctx, portion)
		if err != nil {
			return err
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
	return nil
}
