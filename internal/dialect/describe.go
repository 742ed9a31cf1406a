package dialect

import (
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/dberr"
)

// Describe returns a text for err without values of the application. Servers quote
// parameters in their messages ("Duplicate entry 'x' for key"), whatever the class, so it
// shows only the codes of a server's error. It is safe for log lines; the whole text stays
// in the transaction log's last_error.
func (d *Dialect) Describe(err error) string {
	if err == nil {
		return ""
	}
	var rows *RowsError
	if errors.As(err, &rows) {
		return rows.Error()
	}
	class := d.Class(err)
	var plain interface{ Shown() string }
	if errors.As(err, &plain) {
		return fmt.Sprintf("%s: %s", class, plain.Shown())
	}
	switch code := dberr.Of(err); {
	case code.Known():
		return fmt.Sprintf("%s: %s", class, code)
	case !class.Answered():
		return fmt.Sprintf("%s: %v", class, err)
	default:
		return fmt.Sprintf("%s: %T", class, err)
	}
}
