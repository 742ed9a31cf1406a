package delivery

import (
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/dberr"
)

// Describe says what err is without any value of the application's: servers
// quote parameters in their messages ("Duplicate entry 'x' for key"), so of
// what a server said only its codes are shown, whatever its class: also one
// that leaves the outcome unknown may quote them. It is what a log line may
// carry; the whole text stays in the transaction log's last_error.
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
