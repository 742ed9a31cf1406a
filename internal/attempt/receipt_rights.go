package attempt

import (
	"context"
	"database/sql/driver"
	"strings"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// ReceiptRights makes err a ReceiptRightsError if it says that the account of
// conn's session may not do something to bed_receipt; else it returns err.
func ReceiptRights(ctx context.Context, d *delivery.Dialect, conn driver.Conn, err error) error {
	if err == nil || !denied(err) || !strings.Contains(err.Error(), "bed_receipt") {
		return err
	}
	return &delivery.ReceiptRightsError{Grant: grant(ctx, d, conn), Err: err}
}

// denied reports whether err says that a right on a table is missing.
func denied(err error) bool {
	code := dberr.Of(err)
	return code.State == "42501" || // insufficient_privilege
		code.Number == 1142 || code.Number == 1143 // ER_TABLEACCESS_DENIED_ERROR, ER_COLUMNACCESS_DENIED_ERROR
}

// grant is the statement that an operator has to run, with the account and
// place of conn's session as far as they can be asked for.
func grant(ctx context.Context, d *delivery.Dialect, conn driver.Conn) string {
	const rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON "
	account := "this account"
	if d.Flavor == txlog.FlavorPostgres {
		_ = each(ctx, d, conn, call("SELECT quote_ident(current_user)"), func(row []driver.Value) { account = text(row[0]) })
	} else {
		_ = each(ctx, d, conn, call("SELECT CURRENT_USER()"), func(row []driver.Value) {
			// The host holds no @, the user may.
			if i := strings.LastIndex(text(row[0]), "@"); i >= 0 {
				account = quoteAccount(text(row[0])[:i]) + "@" + quoteAccount(text(row[0])[i+1:])
			}
		})
	}
	place, _ := ReceiptPlace(ctx, d, conn)
	if place != "" {
		place += "."
	}
	return rights + place + "bed_receipt TO " + account
}

func quoteAccount(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
