package attempt

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

// NotOneDML is the error of an entry with a statement other than DML or a message. No
// application logs such an entry.
type NotOneDML struct {
	// Statement is its place in the entry, from 1.
	Statement int
	// Kind is its kind.
	Kind sqltext.Kind
}

func (e *NotOneDML) Error() string {
	return fmt.Sprintf("bed: statement %d of the entry is not one DML statement (%v), and no application logs such an entry: it was not run; "+
		"find out who wrote it, and discard it", e.Statement, e.Kind)
}

// Shown is the text for a log line.
func (e *NotOneDML) Shown() string { return strings.TrimPrefix(e.Error(), "bed: ") }

// Certainly returns Refused: nothing was run, and nothing will be.
func (*NotOneDML) Certainly() dialect.Class { return dialect.Refused }

// OnlyDML returns a *NotOneDML for the first statement other than a single DML or a message. Some
// texts depend on the session's reading of quotes. OnlyDML asks conn about it; without conn it
// lets them pass.
func OnlyDML(ctx context.Context, d *dialect.Dialect, conn driver.Conn, statements []entry.Statement) error {
	for i, s := range statements {
		if i > 0 && s.SQL == statements[i-1].SQL { // as in a batch of units
			continue
		}
		kind, sure := sqltext.IsOneWrite(d.Flavor, s.SQL)
		switch {
		case !sure && conn == nil:
			continue
		case !sure:
			q, err := quoting(ctx, d, conn)
			if err != nil {
				return err
			}
			kind = sqltext.OneWrite(d.Flavor, q, s.SQL)
		}
		if kind != sqltext.DML {
			return &NotOneDML{i + 1, kind}
		}
	}
	return nil
}

// quoting asks how the session of conn reads quotes.
func quoting(ctx context.Context, d *dialect.Dialect, conn driver.Conn) (q sqltext.Quoting, err error) {
	switch {
	case d.Quoting != nil:
		return d.Quoting(conn), nil
	case d.Flavor != sqltext.MySQL:
		return 0, nil
	}
	mode, err := Setting(ctx, conn, "SELECT @@SESSION.sql_mode")
	return dialect.ModeQuoting(mode), err
}
