package attempt

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/listener/delivery"
)

// SchemaParam is the DSN parameter for a target's ReceiptSchema.
const SchemaParam = "bedReceiptSchema"

// maxReceiptSchema is the longest schema name that every server accepts.
const maxReceiptSchema = 63

// CheckReceiptSchema returns an error if a target cannot keep its receipts in its ReceiptSchema;
// nil if it has no ReceiptSchema.
func CheckReceiptSchema(t *delivery.Target) error {
	switch schema := t.ReceiptSchema; {
	case schema == "":
		return nil
	case t.Dialect == nil || t.Dialect.Flavor != sqltext.MySQL && t.Dialect.Flavor != sqltext.Postgres:
		name := "a database of unknown kind"
		if t.Dialect != nil && t.Dialect.Name != "" {
			name = t.Dialect.Name
		}
		return fmt.Errorf("bed: the DSN parameter %s: %s has no schemas to keep receipts in, leave it out", SchemaParam, name)
	case !schemaName.MatchString(schema):
		return fmt.Errorf("bed: the DSN parameter %s must be 1 to %d lower-case letters, digits and underscores, and not begin with a digit", SchemaParam, maxReceiptSchema)
	}
	return nil
}

// At returns r for the table of receipts at a place from ReceiptPlace. The place comes from an
// entry, so At ignores it unless it is a valid name.
func (r Receipts) At(place string) Receipts {
	if own, _, ok := strings.Cut(place, ownFor); ok && len(own) > 2 && schemaName.MatchString(own[1:len(own)-1]) && placeForm.MatchString(own) {
		place = own
	}
	if placeForm.MatchString(place) {
		r.Schema, r.Place = "", place
	}
	return r
}

// placeForm is a schema, or in PostgreSQL a database and a schema, as a server quotes names.
var placeForm = regexp.MustCompile("^(?:" + placeName + `\.)?` + placeName + "$")

const placeName = "(?:[a-z_][a-z0-9_]*|`(?:[^`]|``)+`" + `|"(?:[^"]|"")+")`

// schemaName is a name for a ReceiptSchema.
var schemaName = regexp.MustCompile(fmt.Sprintf("^[a-z_][a-z0-9_]{0,%d}$", maxReceiptSchema-1))

// quoteSchema quotes a name that has passed CheckReceiptSchema.
func quoteSchema(f sqltext.Flavor, schema string) string {
	quote := f.Pick(sqltext.Texts{MySQL: "`", Postgres: `"`, SQLite: `"`})
	return quote + schema + quote
}

// ReceiptHome returns the schema where unqualified names lead to a table of receipts; empty if they
// lead to none.
func ReceiptHome(ctx context.Context, d *dialect.Dialect, conn driver.Conn) (string, error) {
	rows, err := Ask(ctx, conn, d.Flavor.Pick(schemaLedTo))
	return first(rows), err
}

// EnsureReceipts finds or creates the table of receipts, and its ReceiptSchema, on conn's
// database. If the account may not create it, or it has no primary key, the error holds the
// statement to run.
func EnsureReceipts(ctx context.Context, d *dialect.Dialect, conn driver.Conn, r Receipts) error {
	probe := r.text(d.Flavor, probeReceipts)
	_, err := Ask(ctx, conn, probe)
	var cerr error
	// A missing right means that the table exists, but MySQL returns the same error for a missing
	// table. A second table, in a schema of the account's own, would lack the receipts of the
	// first.
	if err != nil && d.Class(err).Answered() && (d.Flavor == sqltext.MySQL || !dberr.Of(err).Denied()) {
		if cerr = createReceipts(ctx, d, conn, r); cerr != nil && !d.Class(cerr).Answered() {
			return cerr
		}
		// Another process may have created it at the same moment; or it is there in an older form.
		_, err = Ask(ctx, conn, probe)
	}
	switch {
	case err == nil && d.Flavor == 0:
		return nil
	case err == nil:
		table := tables.Of(d.Flavor, Receipts{}.text(d.Flavor, createReceiptTable))[0]
		rows, err := Ask(ctx, conn, tables.Place{Flavor: d.Flavor, Schema: r.Schema}.Indexes(receiptTable))
		if err == nil && !table.HasKey(tables.IndexesOf(Texts(rows)), receiptKeys[d.Flavor]...) {
			err = &dialect.ReceiptTableError{Statement: table.AddKey(r.Placed(d.Flavor, receiptTable)), Err: errKeyless}
		}
		return err
	case !d.Class(err).Answered():
		return err
	case dberr.Of(err).Denied():
		return &dialect.ReceiptRightsError{Grant: grant(ctx, d, conn, r), Err: err}
	}
	if _, older := Ask(ctx, conn, r.text(d.Flavor, probeOlder)); older == nil {
		return &dialect.ReceiptTableError{Statement: r.text(d.Flavor, addLogGone), Err: err}
	}
	if cerr == nil {
		cerr = err
	}
	if d.Class(cerr).Later() && !noSchema(cerr) {
		return cerr // a lock, a server that is busy: the next write looks again
	}
	return NoReceiptTable(d, r, cerr)
}

// receiptKeys are the names of the key by which dialects recognise a duplicate receipt; SQLite
// names no key.
var receiptKeys = [...][]string{sqltext.MySQL: {"PRIMARY", "bed_receipt_id"}, sqltext.Postgres: {"bed_receipt_id"}, sqltext.SQLite: nil}

var errKeyless = errors.New("it has no primary key: work whose receipt is there would be applied again")

// createReceipts creates the table, after its schema if the schema is missing.
func createReceipts(ctx context.Context, d *dialect.Dialect, conn driver.Conn, r Receipts) error {
	ddl := r.text(d.Flavor, createReceiptTable)
	_, _, err := Exec(ctx, conn, ddl, nil)
	if r.Schema != "" && noSchema(err) {
		_, _, serr := Exec(ctx, conn, schemaCreation(d, r), nil)
		if serr != nil && !d.Class(serr).Answered() {
			return serr
		}
		if _, _, err = Exec(ctx, conn, ddl, nil); noSchema(err) && serr != nil {
			err = serr
		}
	}
	if err == nil && d.Flavor == sqltext.Postgres {
		// Only the table's owner may comment on it. For others, the comment is there already.
		_, _, _ = Exec(ctx, conn, r.text(d.Flavor, commentReceipts), nil)
	}
	return err
}

func schemaCreation(d *dialect.Dialect, r Receipts) string {
	return "CREATE SCHEMA IF NOT EXISTS " + quoteSchema(d.Flavor, r.Schema)
}

// noSchema reports whether err means that a schema is missing.
func noSchema(err error) bool {
	code := dberr.Of(err)
	return code.State == "3F000" || code.Number == 1049 // invalid_schema_name, ER_BAD_DB_ERROR
}

// ReceiptsElsewhere finds other tables of receipts to which sessions of the same database may
// lead. It returns each as r with its place, or, if the account cannot use it, as the GRANT
// statements to run. In MySQL such tables are where init_connect leads.
func ReceiptsElsewhere(ctx context.Context, d *dialect.Dialect, conn driver.Conn, r Receipts) (usable []Receipts, unusable []string, err error) {
	query := d.Flavor.Pick(elsewhere)
	if query == "" {
		return nil, nil, nil
	}
	rows, err := Ask(ctx, conn, query, r.Schema)
	for _, row := range rows {
		if grant := Text(row[1]); grant != "" {
			unusable = append(unusable, grant)
			continue
		}
		at := r
		at.Schema, at.Place = "", Text(row[0])
		usable = append(usable, at)
	}
	return usable, unusable, err
}

// ReceiptPlace returns the place where conn's session finds or would create bed_receipt. This is
// the quoted database, and in PostgreSQL schema, to which unqualified names lead; it is empty if
// they lead nowhere. The ReceiptSchema, if any, comes first, because writes still lead to the
// other place.
func ReceiptPlace(ctx context.Context, d *dialect.Dialect, conn driver.Conn, r Receipts) (place string, err error) {
	switch d.Flavor {
	case 0:
		return "", nil
	case sqltext.SQLite:
		return "main", nil // CREATE TABLE leads nowhere else
	}
	rows, err := Ask(ctx, conn, d.Flavor.Pick(ledTo))
	place = first(rows)
	if err != nil || r.Schema == "" {
		return place, err
	}
	own := quoteSchema(d.Flavor, r.Schema)
	if place == "" {
		return own, nil
	}
	return own + ownFor + place, nil
}

// ownFor stands between the ReceiptSchema and the place to which writes lead.
const ownFor = " for "

// inDatabase matches a place in PostgreSQL that is within a database.
var inDatabase = regexp.MustCompile("^(.+" + ownFor + placeName + `)\.` + placeName + "$")

// AnySchema returns a place without the schema to which writes lead, if there is a ReceiptSchema.
func AnySchema(place string) string { return inDatabase.ReplaceAllString(place, "$1") }

// InPlace reports whether place is an entry's, which may come from AnySchema.
func InPlace(entry, place string) bool { return entry == place || entry == AnySchema(place) }

// ReceiptRights turns err into a ReceiptRightsError if the account of conn's session lacks a right
// on bed_receipt. It returns any other err unchanged.
func ReceiptRights(ctx context.Context, d *dialect.Dialect, conn driver.Conn, r Receipts, err error) error {
	if err == nil || !dberr.Of(err).Denied() {
		return err
	}
	// If the account may not use the schema, PostgreSQL names only the schema, and its driver puts
	// the code after the name.
	ofSchema := r.Schema != "" && strings.Contains(err.Error(), " "+r.Schema+" (SQLSTATE ")
	ofOrder := strings.Contains(err.Error(), orderTable)
	if !ofSchema && !ofOrder && !strings.Contains(err.Error(), receiptTable) {
		return err
	}
	rights := grant(ctx, d, conn, r)
	if ofOrder {
		rights = strings.Replace(rights, receiptTable, orderTable, 1)
	}
	return &dialect.ReceiptRightsError{Grant: rights, Err: err}
}

// grant returns the statement that an operator has to run. It includes the account and place of
// conn's session if the server returns them.
func grant(ctx context.Context, d *dialect.Dialect, conn driver.Conn, r Receipts) string {
	const rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON "
	account := "this account"
	if d.Flavor == sqltext.Postgres {
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
		place := r.Place
		if place == "" {
			place, _ = ReceiptPlace(ctx, d, conn, r)
		}
		if place != "" {
			place += "."
		}
		return rights + place + receiptTable + " TO " + account
	case d.Flavor == sqltext.Postgres:
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
