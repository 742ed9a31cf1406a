// Package capacity measures the limits of one log, by hand. How fast are units written, claimed and
// drained with a large backlog? How does a long snapshot in the log's database affect that, and how
// does a drain affect new writes? Does memory stay flat, and is the backlog worked off, after an
// outage within an hour?
//
//	BED_TEST_CAPACITY=1000000 go test -v -timeout 0 -run Capacity ./internal/test/capacity
//	BED_TEST_PRESSURE=10m go test -v -timeout 0 -run Pressure ./internal/test/capacity
//	BED_TEST_HUMP=10s go test -v -timeout 0 -run Hump ./internal/test/capacity
//	BED_TEST_ENDURANCE=1h go test -v -timeout 0 -run Endurance ./internal/test/capacity
//
// Without the variables the tests use a few units, and check deliveries and no times. They produced
// the figures of docs/scale.md.
package capacity
