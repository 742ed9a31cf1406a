package sqlite

import "time"

// The driver has no parameter check of its own: a connection that has not been
// dialled uses database/sql's default, as a dialled one does. What that lets
// through, the log keeps.

// storable drops a time's monotonic part. Without _time_format the driver
// writes time.Time.String, and with it a "m=+0.1" that means nothing to any
// other process; the driver itself ignores it when reading.
func storable(v any) (any, error) {
	if t, ok := v.(time.Time); ok {
		return t.Round(0), nil
	}
	return v, nil
}
