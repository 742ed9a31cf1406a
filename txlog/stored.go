package txlog

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// This file says what the log can store, and in which form it stands in the
// columns.

// The greatest lengths: of settings and places in bytes, of the rest in characters.
const (
	maxDataSource = 255
	maxToken      = 40
	maxSettings   = 16 << 10
	maxReceipt    = 80
	maxPlace      = 1 << 10
	maxTrace      = 256
)

// maxFingerprint is how many bytes a fingerprint may have; its column counts
// characters, which are never more.
const maxFingerprint = 64

// minLease is the shortest lease; the log's clock counts milliseconds.
const minLease = time.Millisecond

func validateLease(lease time.Duration) error {
	if lease < minLease {
		return fmt.Errorf("txlog: a lease of %v is too short: it must be at least %v", lease, minLease)
	}
	return nil
}

// validate refuses a unit that could not be stored, or not be found again. Where
// they are empty it fills in the storage's token and the transaction's id. Errors
// name the unit by its id.
func validate(u *Unit, token string) error {
	if u == nil {
		return errors.New("txlog: a unit is nil")
	}
	if !isHeadID(u.ID) {
		return fmt.Errorf("txlog: %q is no id of a unit: make it by NewID", u.ID)
	}
	if n := len(u.Statements); n == 0 || n > MaxStatements {
		return fmt.Errorf("txlog: unit %s has %d statements: it must have 1 to %d", u.ID, n, MaxStatements)
	}
	if u.Lease.Token == "" {
		u.Lease.Token = token
	}
	if u.TransactionID == "" {
		u.TransactionID = u.ID
	}
	if err := validateDataSource(u.DataSource); err != nil {
		return fmt.Errorf("%w (unit %s)", err, u.ID)
	}
	if !storableToken(u.Lease.Token, maxToken) {
		return fmt.Errorf("txlog: the lease token of unit %s must have 1 to %d printable ASCII characters: make it by NewID", u.ID, maxToken)
	}
	if u.TransactionID != u.ID && !storableToken(u.TransactionID, maxToken) {
		return fmt.Errorf("txlog: the transaction id of unit %s must have 1 to %d printable ASCII characters", u.ID, maxToken)
	}
	if u.Place != "" {
		if err := validatePlace(u, u.Place); err != nil {
			return err
		}
	}
	if u.TraceParent != "" && !storableToken(u.TraceParent, maxTrace) {
		return fmt.Errorf("txlog: the traceparent of unit %s must have at most %d printable ASCII characters", u.ID, maxTrace)
	}
	if len(u.Settings) > maxSettings || !storableText(u.Settings) {
		return fmt.Errorf("txlog: the settings of unit %s must be valid UTF-8 without NUL, at most %d bytes", u.ID, maxSettings)
	}
	if u.Receipt != "" && u.Receipt != u.ID && !storableToken(u.Receipt, maxReceipt) {
		return fmt.Errorf("txlog: the receipt of unit %s must have at most %d printable ASCII characters", u.ID, maxReceipt)
	}
	if len(u.Fingerprint) > maxFingerprint || !storableText(u.Fingerprint) {
		return fmt.Errorf("txlog: the fingerprint of unit %s must be valid UTF-8 without NUL, at most %d bytes", u.ID, maxFingerprint)
	}
	if u.Fingerprint != "" && u.Receipt == "" {
		return fmt.Errorf("txlog: unit %s has a fingerprint but no receipt to keep it in", u.ID)
	}
	for i := range u.Statements {
		if !storableText(u.Statements[i].Params) {
			return fmt.Errorf("txlog: the parameters of statement %d of unit %s are not what EncodeParams wrote", i+1, u.ID)
		}
	}
	return nil
}

// validateDataSource refuses names that a database would not tell apart (some
// collations ignore blanks at the end) or would not take.
func validateDataSource(name string) error {
	switch {
	case name == "":
		return errors.New("txlog: the name of the data source is empty")
	case !storableText(name) || len(name) > maxDataSource && utf8.RuneCountInString(name) > maxDataSource:
		return fmt.Errorf("txlog: the name of a data source must be valid UTF-8 without NUL, at most %d characters", maxDataSource)
	case strings.TrimSpace(name) != name:
		return fmt.Errorf("txlog: the name of the data source %q begins or ends with a blank", name)
	}
	return nil
}

// storableToken reports whether s is 1 to most printable ASCII characters.
func storableToken(s string, most int) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return s != "" && len(s) <= most
}

func validateClaim(r *ClaimRequest) error {
	if r.Limit < 1 {
		return fmt.Errorf("txlog: the limit of a claim is %d: it must be at least 1", r.Limit)
	}
	if err := validateDataSource(r.DataSource); err != nil {
		return err
	}
	return validateLease(r.Lease)
}

// defaultListLimit is what a Filter without Limit selects.
const defaultListLimit = 1000

func (f Filter) limit() int {
	if f.Limit <= 0 {
		return defaultListLimit
	}
	return f.Limit
}

// leaseMillis gives the length of a lease on the store's clock. That clock shows
// whole milliseconds, rounded at the beginning and at the end; the lease must
// not end there before it ends for its owner.
func leaseMillis(lease time.Duration) int64 { return millis(lease) + 2 }

// millis rounds a duration up to the log's unit of time.
func millis(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Millisecond) + 1
}

func validatePlace(u *Unit, place string) error {
	switch {
	case len(place) > maxPlace || !storableText(place):
		return fmt.Errorf("txlog: the place of the receipt of unit %s must be valid UTF-8 without NUL, at most %d bytes", u.ID, maxPlace)
	case u.SettingsOlder && place != "":
		return fmt.Errorf("txlog: unit %s was written by an older version, it cannot hold the place of its receipt", u.ID)
	}
	return nil
}

// maxReceiptSchema is the longest name of a schema that every database takes.
const maxReceiptSchema = 63

func validateReceiptSchema(dataSource, schema string) error {
	if schema != "" && !storableToken(schema, maxReceiptSchema) {
		return fmt.Errorf("txlog: the schema of the receipts of %s must have at most %d printable ASCII characters", dataSource, maxReceiptSchema)
	}
	return validateDataSource(dataSource)
}

// oddSQL begins the column sql of a statement whose text is not valid UTF-8 or
// holds a NUL, which a text column of PostgreSQL cannot take: the text follows in
// base64. It is a comment, so that an operator who runs the column's text does no
// harm. A text that itself begins like this is kept in base64 too, so that
// nothing is ever misread.
const oddSQL = "-- base64 "

// encodeSQL gives the text of the column sql: the statement byte for byte, or
// its base64 form.
func encodeSQL(s string) string {
	if storableText(s) && !strings.HasPrefix(s, oddSQL) {
		return s
	}
	return oddSQL + base64.StdEncoding.EncodeToString([]byte(s))
}

func decodeSQL(s string) (string, error) {
	odd, ok := strings.CutPrefix(s, oddSQL)
	if !ok {
		return s, nil
	}
	b, err := base64.StdEncoding.DecodeString(odd)
	if err != nil {
		return "", errors.New(`the column sql begins with "` + oddSQL + `" but is no base64`)
	}
	return string(b), nil
}

// storableText reports whether every database keeps s as it is.
func storableText(s string) bool {
	return strings.IndexByte(s, 0) < 0 && utf8.ValidString(s)
}

// The column parameters of a statement that the application prepared.
const (
	preparedStart = `{"prepared":`
	preparedEnd   = `}`
)

// encodeParams gives the text of the column parameters.
func (s *Statement) encodeParams() string {
	switch {
	case !s.Prepared:
		return s.Params
	case s.Params == "":
		return preparedStart + "[]" + preparedEnd
	default:
		return preparedStart + s.Params + preparedEnd
	}
}

// decodeParams reads the column parameters.
func (s *Statement) decodeParams(column string) {
	s.Params, s.Prepared = strings.CutPrefix(column, preparedStart)
	if s.Prepared {
		s.Params = strings.TrimSuffix(s.Params, preparedEnd)
	}
	if s.Prepared && s.Params == "[]" {
		s.Params = ""
	}
}

// maxErrorText is how many bytes of a LastError are kept.
const maxErrorText = 8 << 10

// errorText makes s storable: what cannot be stored is replaced, what is then too
// long cut.
func errorText(s string) string {
	if !storableText(s) {
		s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	}
	if len(s) <= maxErrorText {
		return s
	}
	const more = "…"
	end := maxErrorText - len(more)
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + more
}

// storedSettings is the column settings: what must be the same where a unit is
// delivered, and where it comes from. Earlier versions wrote the settings alone,
// and knew fewer.
type storedSettings struct {
	Settings string `json:"settings"`
	Place    string `json:"receipts,omitempty"`
	// TraceParent is unknown to versions before 0.2.0, which ignore it.
	TraceParent string `json:"traceparent,omitempty"`
}

const settingsStart = `{"settings":`

// encodeSettings gives the text of the column settings.
func (u *Unit) encodeSettings() string {
	if u.SettingsOlder {
		return u.Settings
	}
	var stack [256]byte
	b := appendQuoted(append(stack[:0], settingsStart...), u.Settings)
	if u.Place != "" {
		b = appendQuoted(append(b, `,"receipts":`...), u.Place)
	}
	if u.TraceParent != "" {
		b = appendQuoted(append(b, `,"traceparent":`...), u.TraceParent)
	}
	return string(append(b, '}'))
}

// decodeSettings reads the column settings.
func (u *Unit) decodeSettings(column string) error {
	if !strings.HasPrefix(column, settingsStart) {
		u.Settings, u.SettingsOlder = column, true
		return nil
	}
	var s storedSettings
	if err := json.Unmarshal([]byte(column), &s); err != nil {
		return errors.New("is no JSON")
	}
	u.Settings, u.Place, u.TraceParent = s.Settings, s.Place, s.TraceParent
	return nil
}
