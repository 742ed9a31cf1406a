package txlog

import (
	"encoding/json"
	"errors"
	"strings"
)

// storedSettings is the column settings: what must be the same where a unit is
// delivered, and where it comes from. Versions before it wrote the settings alone, of which fewer were
// known.
type storedSettings struct {
	Settings string `json:"settings"`
	Place    string `json:"receipts,omitempty"`
	// TraceParent is unknown to versions before 0.2.0, which read over it.
	TraceParent string `json:"traceparent,omitempty"`
}

const settingsStart = `{"settings":`

// encodeSettings gives the text of the column settings.
func (u *Unit) encodeSettings() string {
	if u.SettingsOlder {
		return u.Settings
	}
	var stack [256]byte
	b := appendText(append(stack[:0], settingsStart...), u.Settings)
	if u.Place != "" {
		b = appendText(append(b, `,"receipts":`...), u.Place)
	}
	if u.TraceParent != "" {
		b = appendText(append(b, `,"traceparent":`...), u.TraceParent)
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
