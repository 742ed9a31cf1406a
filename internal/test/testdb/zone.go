package testdb

import (
	"encoding/binary"
	"testing"
	"time"
)

// LocalZone is the zone of a machine whose /etc/localtime has a single offset: its name is "Local"
// on any machine.
func LocalZone(t testing.TB, abbreviation string, offset time.Duration) *time.Location {
	t.Helper()
	file := append([]byte("TZif"), make([]byte, 16+5*4)...) // no leap seconds, no transitions
	file = binary.BigEndian.AppendUint32(file[:36], 1)      // one type
	file = binary.BigEndian.AppendUint32(file, uint32(len(abbreviation)+1))
	file = binary.BigEndian.AppendUint32(file, uint32(offset/time.Second))
	file = append(append(append(file, 0, 0), abbreviation...), 0)
	loc, err := time.LoadLocationFromTZData("Local", file)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}
