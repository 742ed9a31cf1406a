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
func ReceiptRights(ctx context.Context, d *delivery.Dialect, conn driver.Conn, r Receipts, err error) error {
	if err == nil || !dberr.Of(err).Denied() {
		return err
	}
	// PostgreSQL speaks of the schema alone where that may not be used, and its
	// driver puts the code after the name.
	ofSchema := r.Schema != "" && strings.Contains(err.Error(), " "+r.Schema+" (SQLSTATE ")
	if !ofSchema && !strings.Contains(err.Error(), receiptTable) {
		return err
	}
	return rightsError(ctx, d, conn, r, err)
}

// rightsError is ReceiptRights for an error that is known to be about the table.
func rightsError(ctx context.Context, d *delivery.Dialect, conn driver.Conn, r Receipts, err error) error {
	return &delivery.ReceiptRightsError{Grant: grant(ctx, d, conn, r), Err: err}
}

// grant is the statement that an operator has to run, with the account and
// place of conn's session as far as they can be asked for.
func grant(ctx context.Context, d *delivery.Dialect, conn driver.Conn, r Receipts) string {
	const rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON "
	account := "this account"
	if d.Flavor == txlog.FlavorPostgres {
		if user, err := Setting(ctx, conn, "SELECT quote_ident(current_user)"); err == nil {
			account = user
		}
	} else if user, err := Setting(ctx, conn, "SELECT CURRENT_USER()"); err == nil {
		// The host holds no @, the user may.
		if i := strings.LastIndex(user, "@"); i >= 0 {
			account = quoteAccount(user[:i]) + "@" + quoteAccount(user[i+1:])
		}
	}
	switch {
	case r.Schema == "":
		place, _ := ReceiptPlace(ctx, d, conn, r)
		if place != "" {
			place += "."
		}
		return rights + place + receiptTable + " TO " + account
	case d.Flavor == txlog.FlavorPostgres:
		schema := quoteSchema(d.Flavor, r.Schema)
		return "GRANT USAGE ON SCHEMA " + schema + " TO " + account + ";\n" + rights + schema + "." + receiptTable + " TO " + account
	default:
		// The database may not be there yet. An underscore in a database's name
		// stands for any character.
		schema := quoteSchema(d.Flavor, strings.ReplaceAll(r.Schema, "_", `\_`))
		return "GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON " + schema + ".* TO " + account
	}
}

func quoteAccount(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
