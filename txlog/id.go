package txlog

import (
	"strconv"

	"github.com/google/uuid"
)

// The text of a UUID is 36 characters; its last three are the low 12 bits,
// which count the statements of a unit.
const (
	idLen    = 36
	idPrefix = idLen - 3
	headTail = "000"
	hexChars = "0123456789abcdef"
)

// NewID makes the id of a unit: a UUIDv7 whose low 12 bits are zero, so that
// the ids of its up to [MaxStatements] rows follow it without a gap. Ids made
// later by the same process sort behind. It is safe for concurrent use.
func NewID() string {
	id := uuid.Must(uuid.NewV7())
	id[14] &= 0xf0
	id[15] = 0
	return id.String()
}

// rowID is the id of the n-th row (from 0) of the unit whose first row is head.
func rowID(head string, n int) string {
	if n == 0 {
		return head
	}
	var b [idLen]byte
	copy(b[:], head)
	b[idPrefix] = hexChars[n>>8&15]
	b[idPrefix+1] = hexChars[n>>4&15]
	b[idPrefix+2] = hexChars[n&15]
	return string(b[:])
}

// rowIDs gives the ids of a unit's n rows.
func rowIDs(id string, n int) []string {
	ids := make([]string, max(1, n))
	for i := range ids {
		ids[i] = rowID(id, i)
	}
	return ids
}

// headID is the id of the first row of the unit to which the row id belongs.
// What is no id comes back unchanged: it is nobody's.
func headID(id string) string {
	if len(id) != idLen || id[idPrefix:] == headTail {
		return id
	}
	return id[:idPrefix] + headTail
}

// hasRow reports whether id is that of one of the n rows of its unit: a
// mistyped id is not taken for another.
func hasRow(id string, n int) bool {
	head := headID(id)
	if id == head {
		return true
	}
	row, err := strconv.ParseUint(id[idPrefix:], 16, 12)
	return err == nil && int(row) < n && id == rowID(head, int(row))
}

// isHeadID reports whether id has the form of [NewID]'s: lower case, the low
// 12 bits zero.
func isHeadID(id string) bool {
	if len(id) != idLen || id[idPrefix:] != headTail {
		return false
	}
	for i := range idLen {
		c := id[i]
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if c != '-' {
				return false
			}
		} else if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}
