package txlog

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/sqltext"
)

// Attempt is an attempt to deliver a unit that failed, as [Verdict] tells of it.
type Attempt = journal.Attempt

// Journal is for bed's other packages: what is kept beside the log for who looks after
// it, in tables of the same database. nil for a closed storage.
func (s *SQLStorage) Journal() *journal.Journal {
	if s == nil {
		return nil
	}
	return s.journal
}

// JournalOf gives the journal of a storage, or of the one that it wraps (a
// method Unwrap() Storage); nil if it keeps none.
func JournalOf(s Storage) *journal.Journal {
	for s != nil {
		if keeps, ok := s.(interface{ Journal() *journal.Journal }); ok {
			return keeps.Journal()
		}
		wrapper, ok := s.(interface{ Unwrap() Storage })
		if !ok {
			return nil
		}
		s = wrapper.Unwrap()
	}
	return nil
}

// openJournal finds its tables, or creates them. Those that cannot be used are left
// out: the log does not depend on them.
func (s *SQLStorage) openJournal(ctx context.Context) {
	d := journal.Dialect{Flavor: sqltext.Flavor(s.db.backend.Flavor), Now: s.db.backend.Flavor.Clock()}
	off := map[string]error{}
	if s.db.probeJournal(ctx) != nil {
		for name, columns := range journal.Tables() {
			if err := s.db.ensureTable(ctx, table{name, columns}, s.options.create); err != nil {
				off[name] = err
			}
		}
	}
	s.journal = journal.New(s.db.DB, d, off, !s.options.noActivity)
}

// probeJournal asks for all tables and columns at once: on nearly every opening
// they are there.
func (db *database) probeJournal(ctx context.Context) error {
	var columns, from []string
	for name, names := range journal.Tables() {
		for _, c := range names {
			columns = append(columns, name+"."+c)
		}
		from = append(from, name)
	}
	slices.Sort(columns)
	slices.Sort(from)
	rows, err := db.QueryContext(ctx, "SELECT "+strings.Join(columns, ", ")+" FROM "+strings.Join(from, ", ")+" WHERE 1 = 0")
	if err != nil {
		return err
	}
	defer rows.Close()
	if rows.Next() {
		return errors.New("a row where there can be none")
	}
	return rows.Err()
}

// attemptsFor bounds what the keeping of failed attempts can cost who gives a unit
// up.
const attemptsFor = time.Second

// keepAttempts keeps the failed attempts at a unit. Nothing depends on whether
// that can be done.
func (s *SQLStorage) keepAttempts(ctx context.Context, id string, attempts []Attempt) {
	if len(attempts) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, attemptsFor)
	defer cancel()
	_ = s.journal.AddAttempts(ctx, id, attempts)
}
