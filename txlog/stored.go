package txlog

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"
)

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
