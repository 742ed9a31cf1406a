package sqlite

import (
	_ "embed" // the list of neutral parameters
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/bedsql/bed/bedsql/internal/dsnsettings"
	"github.com/bedsql/bed/listener/delivery"
)

//go:embed neutral.txt
var neutralList string

var neutral = dsnsettings.ReadNeutral(neutralList)

// isNeutral reports whether a parameter is neutral; for _pragma the pragma
// decides.
func isNeutral(key, value string) bool {
	if key != "_pragma" {
		return neutral.Has(key)
	}
	pragma, _, _ := strings.Cut(strings.TrimSpace(value), "(")
	pragma, _, _ = strings.Cut(pragma, "=")
	return neutral.Has("_pragma=" + strings.TrimSpace(pragma))
}

// settings writes all parameters but the neutral ones, without defaults. The
// driver runs pragmas in the order of their texts, which is their order here too.
func settings(query url.Values) string {
	var list []dsnsettings.Setting
	for key, values := range query {
		for i, value := range values {
			switch {
			case isNeutral(key, value):
				continue
			case key == "_pragma":
				value = strings.TrimSpace(value)
			case i > 0 && strings.HasPrefix(key, "_"), value == "":
				continue // the driver takes the first
			case (key == "_time_format" || key == "_timezone") && query.Get("_time_integer_format") != "":
				continue // they have no part in an integer
			case key == "_timezone":
				value = zoneName(value)
			case key == "_dqs" && isTrue(value):
				continue
			case key == "_dqs":
				value = "false"
			}
			list = append(list, dsnsettings.Setting{Key: key, Value: value})
		}
	}
	return dsnsettings.Format(list)
}

// with is the target of a DSN in a session with other settings.
func with(dsn, name, text string) (delivery.Target, error) {
	list, err := dsnsettings.Parse(text)
	if err != nil {
		return delivery.Target{}, err
	}
	head, rawQuery := cutQuery(dsn)
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return delivery.Target{}, err
	}
	for key, values := range query {
		query[key] = slices.DeleteFunc(values, func(value string) bool { return !isNeutral(key, value) })
	}
	for _, s := range list {
		query.Add(s.Key, s.Value)
	}
	where, bare, _, err := readDSN(head + "?" + query.Encode())
	if err != nil {
		return delivery.Target{}, err
	}
	t, err := target(where, bare, name)
	if err == nil && t.Settings != text {
		err = errors.New("they name a parameter that is no setting, or one that cannot be applied")
	}
	return t, err
}

// olderSettings are what versions wrote that knew fewer settings, for the entries
// that they left.
func olderSettings(query url.Values) string {
	var list []string
	if format := query.Get("_time_integer_format"); format != "" {
		// Time zone and text format have no part in an integer.
		list = append(list, "_time_integer_format="+format)
	} else {
		if format := query.Get("_time_format"); format != "" {
			list = append(list, "_time_format="+format)
		}
		if zone := query.Get("_timezone"); zone != "" {
			list = append(list, "_timezone="+zoneName(zone))
		}
	}
	if dqs := query.Get("_dqs"); dqs != "" && !isTrue(dqs) {
		list = append(list, "_dqs=false")
	}
	slices.Sort(list)
	return strings.Join(list, ";")
}
