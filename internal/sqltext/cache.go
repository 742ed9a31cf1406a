package sqltext

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
)

const (
	// cacheText is the maximum length of a kept text, in bytes. Longer ones usually contain
	// their values and do not come back.
	cacheText = 8 << 10
	// cacheWays is the number of possible entries for a text.
	cacheWays = 4
)

// Cache remembers the classes of texts. It is bounded in entries, and safe for concurrent
// use; a hit takes no lock and no memory.
type Cache struct {
	flavor Flavor
	seed   maphash.Seed
	// slots are sets of ways neighbours. Entries are never changed, only replaced.
	slots []atomic.Pointer[cacheEntry]
	ways  int
	// turn chooses the neighbour to replace: a text in use soon returns.
	turn atomic.Uint32
}

type cacheEntry struct {
	text  string
	class Class
}

// NewCache returns a cache of at most size texts of flavor f; of none with size below 1.
func NewCache(f Flavor, size int) *Cache {
	ways := min(cacheWays, max(size, 1))
	return &Cache{flavor: f, seed: maphash.MakeSeed(), ways: ways, slots: make([]atomic.Pointer[cacheEntry], max(size, 0)/ways*ways)}
}

// Recent is the last text of one user of a cache: often the next one too. Its zero value is
// ready. It is not safe for concurrent use.
type Recent struct{ last *cacheEntry }

// Get is [Classify] of text.
func (r *Recent) Get(c *Cache, text string) Class {
	if e := r.last; e != nil && e.text == text {
		return e.class
	}
	e := c.entry(text)
	if e == nil {
		return classify(c.flavor, text)
	}
	r.last = e
	return e.class
}

// entry finds or makes the entry of a text; nil if the text is not kept.
func (c *Cache) entry(text string) *cacheEntry {
	if len(text) > cacheText || len(c.slots) == 0 {
		return nil
	}
	sets := uint64(len(c.slots) / c.ways)
	i := int(maphash.String(c.seed, text)%sets) * c.ways
	set := c.slots[i : i+c.ways]
	for i := range set {
		if e := set[i].Load(); e != nil && e.text == text {
			return e
		}
	}
	// A text may be part of a much larger one.
	text = strings.Clone(text)
	e := &cacheEntry{text: text, class: classify(c.flavor, text)}
	set[c.turn.Add(1)%uint32(len(set))].Store(e)
	return e
}
