package sqlite

import "time"

// The driver has no parameter check of its own: a connection that has not been
// dialled uses database/sql's default, as a dialled one does. What that lets
// through, the log keeps.

// storable drops a time's monotonic part, and keeps its zone by the abbreviation. Without
// _time_format the driver writes time.Time.String, in which the former means nothing to
// another process, and the latter comes from a zone that another machine may not have:
// "Local" is a name on each.
func storable(v any) (any, error) {
	t, ok := v.(time.Time)
	if !ok {
		return v, nil
	}
	if name, offset := t.Zone(); t.Location().String() != name {
		t = t.In(time.FixedZone(name, offset))
	}
	return t.Round(0), nil
}
