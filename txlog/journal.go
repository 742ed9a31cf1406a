package txlog

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/journal"
)

// probeJournal asks for all tables and columns at once: at nearly every opening
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
