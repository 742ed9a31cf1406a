// Package dsnsettings writes the parameters of a DSN that may touch values or
// places as a text that can be compared, stored, and applied again.
package dsnsettings

import (
	"errors"
	"net/url"
	"slices"
	"strings"
)

// Neutral holds the parameters that are known to touch neither values nor places,
// and those that are the dialling side's own business. Any other is a setting.
type Neutral map[string]bool

// ReadNeutral reads a list, one parameter a line: its name in lower case, a blank
// and the reason.
func ReadNeutral(list string) Neutral {
	n := Neutral{}
	for line := range strings.Lines(list) {
		if name, _, _ := strings.Cut(strings.TrimSpace(line), " "); name != "" && name != "#" {
			n[name] = true
		}
	}
	return n
}

// Has reports whether a parameter is neutral.
func (n Neutral) Has(name string) bool { return n[strings.ToLower(name)] }

// Setting is one parameter.
type Setting struct{ Key, Value string }

// Format writes settings as sorted "key=value;key=value".
func Format(settings []Setting) string {
	list := make([]string, len(settings))
	for i, s := range settings {
		list[i] = escape(s.Key, "%;=") + "=" + escape(s.Value, "%;")
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ";")
}

var errForm = errors.New("they are not of the form key=value;key=value")

// Parse reads what Format wrote. Its error quotes none of the values.
func Parse(text string) ([]Setting, error) {
	var settings []Setting
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ";") {
		key, value, ok := strings.Cut(part, "=")
		k, kerr := url.PathUnescape(key)
		v, verr := url.PathUnescape(value)
		if !ok || k == "" || kerr != nil || verr != nil {
			return nil, errForm
		}
		settings = append(settings, Setting{k, v})
	}
	return settings, nil
}

func escape(s, special string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == 0x7f || strings.IndexByte(special, c) >= 0 {
			const digits = "0123456789ABCDEF"
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
