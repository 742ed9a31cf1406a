package dialect

import (
	"errors"
	"slices"
	"sync"
)

// known holds the dialects for ClassOf, by their names.
var known sync.Map

// Know registers d for ClassOf. It is safe for concurrent use.
func (d *Dialect) Know() { known.Store(d.Name, d) }

// MistakeOf reports whether err, or an error that it wraps, is Mistaken for a known dialect. One
// mistake among several errors is enough.
func MistakeOf(err error) (mistake bool) {
	var several interface{ Unwrap() []error }
	if errors.As(err, &several) && slices.ContainsFunc(several.Unwrap(), MistakeOf) {
		return true
	}
	known.Range(func(_, d any) bool {
		mistake = d.(*Dialect).Mistaken(err)
		return !mistake
	})
	return mistake
}

// ClassOf returns the class of a driver's error by the known dialects.
func ClassOf(err error) (class Class) {
	known.Range(func(_, d any) bool {
		class = d.(*Dialect).Class(err)
		return class == Unknown
	})
	return class
}
