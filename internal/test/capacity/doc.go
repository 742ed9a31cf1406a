// Package capacity measures by hand how far one log goes: how quickly units are
// written, claimed and drained when very many wait, what a snapshot that is held in
// the log's database does to that, what new writes feel of a drain, and whether
// memory stays flat and the backlog is worked off when an hour has an outage.
//
//	BED_TEST_CAPACITY=1000000 go test -v -timeout 0 -run Capacity ./internal/test/capacity
//	BED_TEST_PRESSURE=10m go test -v -timeout 0 -run Pressure ./internal/test/capacity
//	BED_TEST_HUMP=10s go test -v -timeout 0 -run Hump ./internal/test/capacity
//	BED_TEST_ENDURANCE=1h go test -v -timeout 0 -run Endurance ./internal/test/capacity
//
// Without the variables they run with a few units, and judge what was delivered and no
// times. The figures of docs/scale.md are from them.
package capacity
