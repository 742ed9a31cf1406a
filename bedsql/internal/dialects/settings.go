// Package dialects is shared by the packages of the databases. It holds the settings of a
// DSN or a session as a text for comparing, storing and reapplying, the meaning of a
// server's error codes, and names of time zones.
package dialects

import (
	"crypto/sha256"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/listener/delivery"
)

// DataSourceParam names the data source in a DSN. The driver never sees it.
const DataSourceParam = "bedDataSource"

// ErrElsewhere says that a connection leads elsewhere than the name of its data source.
var ErrElsewhere = attempt.Certain(errors.New("bed: the connector led elsewhere than the data source's name says, which was derived from the address: name the data source (bedDataSource)"), dialect.Refused)

// Own are the values of bed's parameters in a DSN.
type Own struct{ DataSource, ReceiptSchema string }

// TakeOwn removes bed's parameters from those that a driver would set in its sessions. kind
// begins its error.
func TakeOwn(kind string, params map[string]string) (others map[string]string, own Own, err error) {
	others = maps.Clone(params)
	for _, key := range slices.Sorted(maps.Keys(params)) {
		value := &own.DataSource
		if strings.EqualFold(key, attempt.SchemaParam) {
			value = &own.ReceiptSchema
		} else if key != DataSourceParam {
			continue
		}
		delete(others, key)
		if *value = params[key]; *value == "" {
			err = fmt.Errorf("%s: %s in the DSN is empty: give it a value or leave it out", kind, key)
		}
	}
	return others, own, err
}

// Neutral holds the parameters that affect neither values nor places, and those of the
// dialling side alone. Any other parameter is a setting.
type Neutral map[string]bool

// ReadNeutral reads a list with one parameter a line: its name in lower case, a blank and
// the reason.
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

// maxText is the maximum size of an entry's settings in bytes; the log takes 16 KiB.
const maxText = 12 << 10

// Format writes settings as sorted "key=value;key=value", at most 12 KiB. In a longer text
// it replaces the longest values by their digests, which are comparable but not applicable.
func Format(settings []Setting) string {
	text := format(settings)
	for most := maxText / 2; len(text) > maxText && most >= 64; most /= 2 {
		settings = slices.Clone(settings)
		for i, s := range settings {
			if len(s.Value) > most {
				settings[i].Value = digest(s.Value)
			}
		}
		text = format(settings)
	}
	if len(text) > maxText {
		return format([]Setting{{"all settings", digest(text)}})
	}
	return text
}

func format(settings []Setting) string {
	list := make([]string, len(settings))
	for i, s := range settings {
		list[i] = escape(s.Key, "%;=") + "=" + escape(s.Value, "%;")
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ";")
}

const digested = "sha256:"

func digest(value string) string { return fmt.Sprintf("%s%x", digested, sha256.Sum256([]byte(value))) }

// isDigest reports whether s stands for a value that was too long to store. A short value
// may look the same: it is not applied either.
func (s Setting) isDigest() bool { return strings.HasPrefix(s.Value, digested) }

var (
	errForm   = errors.New("they are not of the form key=value;key=value")
	errDigest = errors.New("the values of some are too long to be stored")
)

// Parse reads the output of Format. Its error quotes no values.
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

// ToApply is Parse for settings to apply.
func ToApply(text string) ([]Setting, error) {
	settings, err := Parse(text)
	if err == nil && slices.ContainsFunc(settings, Setting.isDigest) {
		err = errDigest
	}
	return settings, err
}

// Applying returns a Target.With. It applies settings by with, and checks that the target then has
// just those.
func Applying(with func([]Setting) (delivery.Target, error)) func(string) (delivery.Target, error) {
	return func(text string) (delivery.Target, error) {
		list, err := ToApply(text)
		if err != nil {
			return delivery.Target{}, err
		}
		t, err := with(list)
		if err == nil && t.Settings != text {
			err = errors.New("they name a parameter that is no setting, or one that cannot be applied")
		}
		return t, err
	}
}

// Changes returns the settings of want that has lacks or has otherwise, and the usual values
// of those in has alone. It skips settings without a usual value, and values known only by
// digest.
func Changes(has, want string, usual map[string]string) ([]Setting, error) {
	all, err := Parse(want)
	if err != nil {
		return nil, err
	}
	old, err := Parse(has)
	if err != nil {
		return nil, err
	}
	changes := slices.DeleteFunc(slices.Clone(all), func(s Setting) bool { return s.isDigest() || slices.Contains(old, s) })
	for _, s := range old {
		if value, known := usual[s.Key]; known && !slices.ContainsFunc(all, func(a Setting) bool { return a.Key == s.Key }) {
			changes = append(changes, Setting{s.Key, value})
		}
	}
	// A character set resets the collation, so the collation comes after it.
	slices.SortFunc(changes, func(a, b Setting) int { return strings.Compare(a.Key, b.Key) })
	return changes, nil
}

// Replace returns the settings of text with the values of names in list. unset is one of names
// without a value. usual is as for Changes.
func Replace(text string, names []string, list []Setting, usual map[string]string) (now, unset string, err error) {
	all, err := Parse(text)
	all = slices.DeleteFunc(all, func(s Setting) bool { return slices.Contains(names, s.Key) })
	for _, name := range names {
		i := slices.IndexFunc(list, func(s Setting) bool { return s.Key == name })
		switch often := usual[name]; {
		case i < 0:
			return text, name, err
		case len(list[i].Value) > maxNamed:
			return text, "", attempt.Certain(fmt.Errorf("the value of %s is longer than %d bytes", name, maxNamed), dialect.Refused)
		case often == "" || list[i].Value != often:
			all = append(all, list[i])
		}
	}
	return Format(all), "", err
}

// maxNamed is the maximum size of a value that must not be stored as its digest.
const maxNamed = 1 << 10

// escape writes special characters and non-text as %XX.
func escape(s, special string) string {
	text := utf8.ValidString(s)
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == 0x7f || c >= 0x80 && !text || strings.IndexByte(special, c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// ZoneName returns a name for loc that two processes share only for the same zone ("Local"
// alone would be ambiguous): an IANA name, or "UTC" (for nil too). A local zone without a
// known name is named by its offsets in winter and summer.
func ZoneName(loc *time.Location) string {
	if loc == nil {
		return "UTC"
	}
	offsets := func(of *time.Location) string {
		at := func(m time.Month) string { return time.Date(2024, m, 15, 12, 0, 0, 0, of).Format("-07:00") }
		return at(time.January) + "," + at(time.July)
	}
	name := loc.String()
	if name == "Local" { // as a rule read from /etc/localtime, which leads to the zone's file
		name, _ = filepath.EvalSymlinks("/etc/localtime")
	}
	if filepath.IsAbs(name) {
		_, name, _ = strings.Cut(name, "/zoneinfo/")
		if named, err := time.LoadLocation(name); err != nil || offsets(named) != offsets(loc) {
			name = ""
		}
	}
	switch name {
	case "UTC", "Etc/UTC", "Etc/UCT", "UCT", "Universal", "Zulu", "Etc/Universal", "Etc/Zulu":
		return "UTC"
	case "":
		return "Local(" + offsets(loc) + ")"
	}
	return name
}

// Value returns the value of a Valuer. A nil pointer would panic in a Value method of its
// element type: like database/sql and the drivers, Value treats it as NULL.
func Value(v driver.Valuer) (driver.Value, error) {
	if rv := reflect.ValueOf(v); rv.Kind() == reflect.Pointer && rv.IsNil() && rv.Type().Elem().Implements(reflect.TypeFor[driver.Valuer]()) {
		return nil, nil
	}
	return v.Value()
}
