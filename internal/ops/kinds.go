package ops

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/errmask"
)

// kind identifies similar errors.
type kind struct{ DataSource, Code, Text string }

// maxKindText is the length up to which errors are compared.
const maxKindText = 300

var (
	// codes match the database's code in drivers' errors.
	codes = []*regexp.Regexp{
		regexp.MustCompile(`Error (\d+) \(\w{5}\)`),
		regexp.MustCompile(`\(SQLSTATE (\w{5})\)`),
		regexp.MustCompile(`\((\d+)\)$`),
	}
	// differing matches numbers that vary between similar errors: a port of this machine, a
	// process, a transaction, a time.
	differing = regexp.MustCompile(`(:)\d{4,5}(->)|\b\d{6,}\b|\b0x[0-9a-fA-F]{4,}\b|(\b[Pp]rocess )\d+`)
)

// kindOf is the kind of a unit's last error.
func kindOf(u *entry.Unit) kind {
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

// likeText removes the variable parts of a masked error.
func likeText(masked string) string {
	text := differing.ReplaceAllString(masked, "${1}${3}"+mask+"${2}")
	if len(text) > maxKindText {
		text = strings.ToValidUTF8(text[:maxKindText], "")
	}
	return text
}

// ofText is the code of a kind of entries with the same SQL text, regardless of their errors.
const ofText = "sql"

// textKind is the kind of the entries with a given text.
func textKind(dataSource, text string) kind {
	sum, begin := sha256.Sum256([]byte(text)), text
	if !storable(begin) { // the log keeps it in another form
		begin = ""
	}
	begin = strings.ToValidUTF8(begin[:min(len(begin), 200)], "")
	return kind{dataSource, ofText, hex.EncodeToString(sum[:8]) + " " + begin}
}

// holding returns the index of a unit's first statement with the text of a kind; -1 if there is no
// such statement.
func (k kind) holding(u *entry.Unit) int {
	return slices.IndexFunc(u.Statements, func(s entry.Statement) bool { return textKind(u.DataSource, s.SQL) == k })
}

// words are the subject of the kind: a masked error, or the beginning of an SQL text.
func (k kind) words() string {
	if _, begin, ok := strings.Cut(k.Text, " "); ok && k.Code == ofText {
		return begin
	}
	return k.Text
}

// key encodes the kind for Filter.Kind.
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

// KindText returns the masked error of a kind, or the beginning of its SQL text, and its data
// source. ErrInvalid.
func KindText(key string) (text, dataSource string, err error) {
	k, err := readKind(key)
	return k.words(), k.DataSource, err
}

// wholeRows is the size up to which a log is grouped whole. Of a larger log, we group as many rows
// as half a second allows.
const wholeRows = 100_000

// Kinds groups the entries with an error among those matching f. If f has no text and the log at
// most 100,000 rows, it groups all. Otherwise it groups at least as many as half a second or the
// deadline of ctx allows, and More reports that there are others.
func (s *Store) Kinds(ctx context.Context, f Filter) (*Kinds, error) {
	alike := kinds{}
	end := time.Now().Add(s.groupFor)
	more := false
	next, err := s.sweep(ctx, &f, Page{}, 8*firstStep, func(rows where, seen int) (bool, error) {
		if !f.judged() {
			err := s.group(ctx, rows, alike)
			return seen >= s.whole && over(end), err
		}
		ids, left, err := s.unitsOf(ctx, &f, rows, math.MaxInt, end)
		more = left != ""
		for portion := range slices.Chunk(ids, 500) {
			condition, args := in(portion)
			if err := s.group(ctx, where{text: ` WHERE ` + condition, args: args}, alike); err != nil {
				return false, err
			}
		}
		return more || over(end), err
	})
	if err != nil && len(alike) > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		more, err = true, nil
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*s.groupFor)
		defer cancel()
		ctx = bounded
	}
	if err != nil {
		return nil, err
	}
	groups, err := s.masked(ctx, alike)
	if err != nil {
		return nil, err
	}
	out := &Kinds{Kinds: []Kind{}, More: more || next != ""}
	for k, g := range groups {
		g.Key, g.DataSource, g.Code, g.Text, g.More = k.key(), k.DataSource, k.Code, k.Text, out.More
		out.Kinds = append(out.Kinds, *g)
	}
	slices.SortFunc(out.Kinds, func(a, b Kind) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Oldest, b.Oldest)) })
	return out, nil
}

// kinds are groups of entries with similar errors.
type kinds map[kind]*Kind

// add adds entries to their group.
func (all kinds) add(k kind, some Kind) {
	g := all[k]
	if g == nil {
		all[k] = &some
		return
	}
	g.Count += some.Count
	if some.Oldest < g.Oldest {
		g.Oldest, g.CreatedAt = some.Oldest, some.CreatedAt
	}
	if some.Newest > g.Newest {
		g.Newest, g.NewestCreatedAt = some.Newest, some.NewestCreatedAt
	}
}

// group reads the rows with an error and groups similar ones. It masks the quoted values only.
func (s *Store) group(ctx context.Context, rows where, alike kinds) error {
	rows.and(`last_error IS NOT NULL`)
	return s.each(ctx, func(rows *sql.Rows) error {
		var name, text string
		var some Kind
		var first, last int64
		err := rows.Scan(&name, &text, &some.Count, &some.Oldest, &first, &some.Newest, &last)
		if err == nil {
			some.CreatedAt, some.NewestCreatedAt = time.UnixMilli(first), time.UnixMilli(last)
			alike.add(kind{name, codeOf(text), likeText(errmask.Mask(text))}, some)
		}
		return err
	}, `SELECT data_source, last_error, COUNT(*), MIN(id), MIN(creation_time), MAX(id), MAX(creation_time) FROM transaction_log`+rows.text+` GROUP BY data_source, last_error`, rows.args...)
}

// masked refines kinds by masking parameter values too. It reads the first unit of each for its
// parameters.
func (s *Store) masked(ctx context.Context, alike kinds) (kinds, error) {
	groups, byFirst := kinds{}, make(map[string]*Kind, len(alike))
	for _, t := range alike {
		byFirst[t.Oldest] = t
	}
	for portion := range slices.Chunk(slices.Sorted(maps.Keys(byFirst)), judgedAtOnce) {
		units, err := s.sql.Units(ctx, portion)
		if err != nil {
			return nil, err
		}
		for _, u := range units {
			if t := byFirst[u.ID]; u.LastError != "" { // else it changed meanwhile
				groups.add(kindOf(u), *t)
			}
		}
	}
	return groups, nil
}
