package txlog_test

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

// point is a type known to only one driver.
type point struct{ x, y int }

var registerPoint = func() bool {
	txlog.RegisterParamType("test.point", point{}, func(v any) (string, error) {
		p := v.(point)
		if p.x < 0 {
			return "", errors.New("has no place")
		}
		return fmt.Sprintf("%d \x00 %d", p.x, p.y), nil
	}, func(s string) (any, error) {
		var p point
		if s == "wrong" {
			return &p, nil
		}
		_, err := fmt.Sscanf(s, "%d \x00 %d", &p.x, &p.y)
		return p, err
	})
	return true
}()

func TestARegisteredTypeComesBackAsItself(t *testing.T) {
	t.Parallel()
	if !registerPoint {
		t.Fatal("not registered")
	}
	if got, want := roundTrip(t, []driver.NamedValue{{Ordinal: 1, Value: point{3, 4}}}), `[{"test.point":"3 \u0000 4"}]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, err := entry.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: point{-1, 0}}}); err == nil {
		t.Error("an encoder's error was ignored")
	}
	for _, text := range []string{`[{"test.point":"x"}]`, `[{"test.point":"wrong"}]`, `[{"test.point":7}]`} {
		if got, err := entry.DecodeParams(text); err == nil {
			t.Errorf("%s was read as %v", text, got)
		}
	}
}

func TestTypeIsRegisteredOnceUnderItsName(t *testing.T) {
	t.Parallel()
	encode := func(any) (string, error) { return "", nil }
	decode := func(string) (any, error) { return nil, nil }
	for what, register := range map[string]func(){
		"a known type":   func() { txlog.RegisterParamType("x", "", encode, decode) },
		"twice":          func() { txlog.RegisterParamType("x", point{}, encode, decode) },
		"a taken name":   func() { txlog.RegisterParamType("test.point", secretType{}, encode, decode) },
		"a tag's name":   func() { txlog.RegisterParamType("time", secretType{}, encode, decode) },
		"a field's name": func() { txlog.RegisterParamType("value", secretType{}, encode, decode) },
		"an odd name":    func() { txlog.RegisterParamType("a\"b", secretType{}, encode, decode) },
		"no sample":      func() { txlog.RegisterParamType("x", nil, encode, decode) },
		"no decoder":     func() { txlog.RegisterParamType("x", secretType{}, encode, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was accepted", what)
				}
			}()
			register()
		}()
	}
}
