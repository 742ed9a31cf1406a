package txlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
)

// paramType is a driver's own parameter type.
type paramType struct {
	name   string
	goType reflect.Type
	encode func(any) (string, error)
	decode func(string) (any, error)
}

var paramTypes struct {
	sync.RWMutex
	byName map[string]*paramType
	byType map[reflect.Type]*paramType
}

// RegisterParamType teaches the log a type that only one driver takes as a
// parameter. Parameters of exactly sample's type are kept as
// {"name":"…text of encode…"}; decode must give back the same type, and the
// same value. Both may be called concurrently; their errors must not hold the
// value.
//
// It is meant for the init function of a database's package and panics, as
// sql.Register does, when a function or the sample is nil, when the name is
// not plain text or taken, or when the type is known already.
func RegisterParamType(name string, sample any, encode func(any) (string, error), decode func(string) (any, error)) {
	t := reflect.TypeOf(sample)
	if t == nil || encode == nil || decode == nil {
		panic("txlog: RegisterParamType " + name + ": the sample or a function is nil")
	}
	if !plainName(name) {
		panic("txlog: RegisterParamType: the name is not plain text")
	}
	if _, err := appendValue(nil, reflect.Zero(t).Interface()); err == nil || !errors.Is(err, errNotStorable) {
		panic("txlog: RegisterParamType " + name + ": " + t.String() + " is known already")
	}
	paramTypes.Lock()
	defer paramTypes.Unlock()
	_, builtin := decoders[name]
	if _, taken := paramTypes.byName[name]; taken || builtin {
		panic("txlog: RegisterParamType " + name + ": the name is taken")
	}
	if paramTypes.byName == nil {
		paramTypes.byName = map[string]*paramType{}
		paramTypes.byType = map[reflect.Type]*paramType{}
	}
	p := &paramType{name: name, goType: t, encode: encode, decode: decode}
	paramTypes.byName[name] = p
	paramTypes.byType[t] = p
}

// plainName reports whether name can stand in JSON as it is and is not a word
// of the log's own.
func plainName(name string) bool {
	for i := range len(name) {
		if c := name[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return name != "" && name != "value" && name != "name" && name != "ordinal" && name != "base64"
}

func appendRegistered(b []byte, v any) ([]byte, error) {
	paramTypes.RLock()
	p := paramTypes.byType[reflect.TypeOf(v)]
	paramTypes.RUnlock()
	if p == nil {
		return b, errNotStorable
	}
	text, err := p.encode(v)
	if err != nil {
		return b, fmt.Errorf("cannot be kept in the transaction log: %w", err)
	}
	return appendTagged(b, p.name, text, appendText), nil
}

func decodeRegistered(tag string, raw json.RawMessage) (any, error) {
	paramTypes.RLock()
	p := paramTypes.byName[tag]
	paramTypes.RUnlock()
	if p == nil {
		return nil, errors.New("is of a type that this program does not know: " +
			"import the package of its database (bedsql/mysql, bedsql/postgres or bedsql/sqlite)")
	}
	text, err := decodeText(raw)
	if err != nil {
		return nil, err
	}
	v, err := p.decode(text)
	if err != nil {
		return nil, fmt.Errorf("is no %s", p.goType) // what decode says quotes the value
	}
	if reflect.TypeOf(v) != p.goType {
		return nil, fmt.Errorf("was read as %T instead of %s", v, p.goType)
	}
	return v, nil
}
