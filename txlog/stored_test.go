package txlog

import (
	"strings"
	"testing"
)

// What a writer keeps is read as it was.
func FuzzWhatIsKeptInAColumnIsReadAsItWas(f *testing.F) {
	f.Add("UPDATE t SET n = 1", `[1]`, "time_zone=UTC", "app.bed_receipt", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add("-- base64 x", `[]`, `{"settings":"`, "a\"\\\n", "\u2028")
	f.Add("\x00", `[{"prepared":1}]`, "", "", "")
	f.Add("\xff-- base64 ", "", `{"settings":"x"}`, "<>&", " ")
	f.Fuzz(func(t *testing.T, sql, params, settings, place, trace string) {
		column := encodeSQL(sql)
		if got, err := decodeSQL(column); err != nil || got != sql || !storableText(column) {
			t.Errorf("the statement %q is kept as %q and read as %q, %v", sql, column, got, err)
		}
		if params == "" || strings.HasPrefix(params, "[") && params != "[]" {
			for _, prepared := range []bool{false, true} {
				s, got := Statement{Params: params, Prepared: prepared}, Statement{}
				if got.decodeParams(s.encodeParams()); got.Params != params || got.Prepared != prepared {
					t.Errorf("the parameters %+v are kept as %q and read as %+v", s, s.encodeParams(), got)
				}
			}
		}
		if !storableText(settings) || !storableText(place) || !storableText(trace) {
			return // refused by validate
		}
		u, got := Unit{Settings: settings, Place: place, TraceParent: trace}, Unit{}
		if err := got.decodeSettings(u.encodeSettings()); err != nil || got.Settings != settings || got.Place != place || got.TraceParent != trace || got.SettingsOlder {
			t.Errorf("%q, %q and %q are kept as %q and read as %+v, %v", settings, place, trace, u.encodeSettings(), got, err)
		}
	})
}

// What anybody wrote into a column is refused or means one thing: written again
// and read again it is the same.
func FuzzWhatIsFoundInAColumnMeansOneThing(f *testing.F) {
	for _, column := range []string{
		"UPDATE t SET n = 1", "-- base64 ", "-- base64 AA==", "-- base64 LS0gYmFzZTY0IA==", "-- base64 A\nA==", "time_zone=UTC", `{"settings":"a"}`, `{"settings":"a","receipts":"b","traceparent":"c"}`,
		`{"settings":null}`, `{"settings":1}`, `{"settings":"a","Settings":"b"}`, `{"settings":"\ud800"}`, `{"settings":"a"}}`, "{\"settings\":\"\xff\"}", `{"prepared":[1]}`, `{"prepared":`, "",
	} {
		f.Add(column)
	}
	f.Add(strings.Repeat("\x00", maxErrorText))
	f.Add(strings.Repeat("é", maxErrorText/2) + "\xff")
	f.Fuzz(func(t *testing.T, column string) {
		if sql, err := decodeSQL(column); err == nil {
			if again, err := decodeSQL(encodeSQL(sql)); err != nil || again != sql {
				t.Errorf("%q is read as %q, and that as %q, %v", column, sql, again, err)
			}
		}
		var u, again Unit
		if err := u.decodeSettings(column); err == nil {
			if err := again.decodeSettings(u.encodeSettings()); err != nil || again.Settings != u.Settings || again.Place != u.Place || again.TraceParent != u.TraceParent || again.SettingsOlder != u.SettingsOlder {
				t.Errorf("%q is read as %+v, and that as %+v, %v", column, u, again, err)
			}
		}
		if text := errorText(column); !storableText(text) || len(text) > maxErrorText || errorText(text) != text || storableText(column) && len(column) <= maxErrorText && text != column {
			t.Errorf("the error %q is kept as %q", column, text)
		}
	})
}
