package txlog

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/journal"
)

// Attempt is an attempt to deliver a unit that failed, as [Verdict] tells of it.
type Attempt = journal.Attempt

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
