// Package capacity measures by hand how far one log goes: how quickly units are
// written, claimed and drained when very many wait, and what new writes feel of it.
//
//	BED_TEST_CAPACITY=1000000 go test -v -timeout 0 -run Capacity ./internal/test/capacity
//
// Without the variable it runs with a few units, so that it stays runnable. The
// figures of docs/scale.md are from it.
package capacity
