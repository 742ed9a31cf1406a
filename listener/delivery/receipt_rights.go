package delivery

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/bedsql/bed/internal/dberr"
)

// ReceiptRightsError says that the account lacks rights on the table bed_receipt
// of a target.
type ReceiptRightsError struct {
	// Grant gives it those that deliveries and purges need.
	Grant string
	// Err is the database's error.
	Err error
}

func (e *ReceiptRightsError) Error() string {
	return fmt.Sprintf("bed: the account lacks rights on the target's table bed_receipt (%v); have run there, by an account that may, once the table is there:\n%s;", e.Err, e.Grant)
}

// Unwrap gives the database's error.
func (e *ReceiptRightsError) Unwrap() error { return e.Err }

// ReceiptRights makes err a ReceiptRightsError if it says that the account of
// conn's session may not do something to bed_receipt; else it returns err.
func (d *Dialect) ReceiptRights(ctx context.Context, conn driver.Conn, err error) error {
	if err == nil || !denied(err) || !strings.Contains(err.Error(), "bed_receipt") {
		return err
	}
	return &ReceiptRightsError{Grant: d.grant(ctx, conn), Err: err}
}

// denied reports whether err says that a right on a table is missing.
func denied(err error) bool {
	code := dberr.Of(err)
	return code.State == "42501" || // insufficient_privilege
		code.Number == 1142 || code.Number == 1143 // ER_TABLEACCESS_DENIED_ERROR, ER_COLUMNACCESS_DENIED_ERROR
}

// grant is the statement that an operator has to run, with the account and
// place of conn's session as far as they can be asked for.
func (d *Dialect) grant(ctx context.Context, conn driver.Conn) string {
	const rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON "
	account, place := "this account", ""
	if d.Flavor == Postgres {
		_ = d.each(ctx, conn, call("SELECT quote_ident(current_user)"), func(row []driver.Value) { account = text(row[0]) })
		place, _ = d.ReceiptPlace(ctx, conn)
	} else {
		_ = d.each(ctx, conn, call("SELECT CURRENT_USER()"), func(row []driver.Value) {
			// The host holds no @, the user may.
			if i := strings.LastIndex(text(row[0]), "@"); i >= 0 {
				account = quoteAccount(text(row[0])[:i]) + "@" + quoteAccount(text(row[0])[i+1:])
			}
		})
		place, _ = d.ReceiptPlace(ctx, conn)
	}
	if place != "" {
		place += "."
	}
	return rights + place + "bed_receipt TO " + account
}

func quoteAccount(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
