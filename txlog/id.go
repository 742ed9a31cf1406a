package txlog

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// The text of a UUID is 36 characters; its last three are the low 12 bits,
// which count the statements of a unit.
const (
	idLen    = 36
	idPrefix = idLen - 3
	headTail = "000"
	hexChars = "0123456789abcdef"
)

// lastID is the time part of the id that was made last: 48 bits of milliseconds
// since the epoch and 12 bits of their fraction.
var lastID atomic.Int64

// NewID makes the id of a unit: a UUIDv7 whose low 12 bits are zero, so that
// the ids of its up to [MaxStatements] rows follow it without a gap. Ids made
// later by the same process sort behind. It is safe for concurrent use.
func NewID() string {
	var b [idLen]byte
	stamp, random := uint64(idTime()), rand.Uint64()
	putHex(b[0:8], stamp>>28)
	b[8] = '-'
	putHex(b[9:13], stamp>>12)
	b[13], b[14] = '-', '7'
	putHex(b[15:18], stamp)
	b[18] = '-'
	b[19] = hexChars[8|random>>48&3]
	putHex(b[20:23], random>>36)
	b[23] = '-'
	putHex(b[24:idPrefix], random)
	copy(b[idPrefix:], headTail)
	return string(b[:])
}

// putHex fills b with the low digits of n.
func putHex(b []byte, n uint64) {
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = hexChars[n&15]
		n >>= 4
	}
}

// idTime gives a time later than all before.
func idTime() int64 {
	now := time.Now().UnixNano()
	milli := now / int64(time.Millisecond)
	// A fraction has 3907 steps, so that it fits.
	stamp := milli<<12 | (now-milli*int64(time.Millisecond))>>8
	for {
		last := lastID.Load()
		if stamp <= last {
			stamp = last + 1
		}
		if lastID.CompareAndSwap(last, stamp) {
			return stamp
		}
	}
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

// headID is the id of the first row of the unit to which the row id belongs.
// What is no id comes back unchanged: it is nobody's.
func headID(id string) string {
	if len(id) != idLen || id[idPrefix:] == headTail {
		return id
	}
	return id[:idPrefix] + headTail
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
