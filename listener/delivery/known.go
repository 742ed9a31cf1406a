package delivery

import "sync"

// known are the dialects that ClassOf asks, by their names.
var known sync.Map

// Know has ClassOf read the errors of d's driver. It is safe for concurrent use.
func (d *Dialect) Know() { known.Store(d.Name, d) }

// MistakeOf reports whether err, or one that it wraps, is Mistaken for a dialect that is
// known.
func MistakeOf(err error) (mistake bool) {
	known.Range(func(_, d any) bool {
		mistake = d.(*Dialect).Mistaken(err)
		return !mistake
	})
	return mistake
}

// ClassOf reads an error of a driver by the dialects that are known.
func ClassOf(err error) (class Class) {
	known.Range(func(_, d any) bool {
		class = d.(*Dialect).Class(err)
		return class == Unknown
	})
	return class
}
