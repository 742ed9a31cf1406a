package entry

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Order is a unit's place under an order key: the units of a key take effect in the order of
// their numbers.
type Order struct {
	// Key is the hash of the data source and the application's key. It begins with OrderPrefix
	// and has at most 80 ASCII letters, digits and hyphens.
	Key string `json:"key"`
	// Number is set by Add. A key's numbers rise in the order of the commits to the log. Each
	// is the log's clock in microseconds, or the last number plus one.
	Number int64 `json:"number"`
}

// OrderPrefix begins order keys.
const OrderPrefix = "order-"

// WaitsFrom is a next_try_time, the end of the year 9999. From it on a unit waits for another
// one and has no lease.
const WaitsFrom = 253402300799000

// Apart joins texts for a hash: different lists give different results.
func Apart(texts ...string) (all []byte) {
	for _, s := range texts {
		all = append(binary.BigEndian.AppendUint64(all, uint64(len(s))), s...)
	}
	return all
}

// KeysUnder returns the order keys of u.
func KeysUnder(u *Unit) []string {
	keys := make([]string, len(u.Order))
	for i, o := range u.Order {
		keys[i] = o.Key
	}
	return keys
}

// StorableKey reports whether key needs no escaping between quotes.
func StorableKey(key string) bool {
	return strings.HasPrefix(key, OrderPrefix) && len(key) <= MaxReceipt && strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") == ""
}

func validateOrder(u *Unit) error {
	for i, o := range u.Order {
		if !StorableKey(o.Key) || slices.Contains(KeysUnder(u)[:i], o.Key) {
			return fmt.Errorf("txlog: the order key %d of unit %s must be given once, begin with %s and have at most %d letters, digits and hyphens", i+1, u.ID, OrderPrefix, MaxReceipt)
		}
	}
	return nil
}
