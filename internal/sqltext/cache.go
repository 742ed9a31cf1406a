package sqltext

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
)

const (
	// cacheText is the longest text kept, in bytes. Longer ones carry their
	// values in the text, as a rule, and do not come back.
	cacheText = 8 << 10
	// cachePerEntry times the number of entries is how many bytes of text a
	// cache keeps in all.
	cachePerEntry = 1 << 10
	// cacheWays is how many entries a text may be kept in.
	cacheWays = 4
)

// Cache remembers what texts were read as. It is bounded in entries and in
// bytes, and safe for concurrent use; a hit takes no lock and no memory.
type Cache struct {
	flavor Flavor
	seed   maphash.Seed
	// slots are sets of ways neighbours. Entries are never changed, only replaced.
	slots []atomic.Pointer[cacheEntry]
	ways  int
	// bytes is the length of all texts in slots.
	bytes    atomic.Int64
	maxBytes int64
	// turn chooses the first neighbour to be looked at for eviction.
	turn atomic.Uint32
}

type cacheEntry struct {
	text  string
	class Class
	// used is set by a hit and cleared when the entry is spared for it.
	used atomic.Bool
}

// NewCache makes a cache for texts of flavor f that keeps at most size of them
// and, a few texts more or less, at most size KiB of text. With size below 1 it
// keeps none.
func NewCache(f Flavor, size int) *Cache {
	c := &Cache{flavor: f, seed: maphash.MakeSeed()}
	if size < 1 {
		return c
	}
	c.ways = min(cacheWays, size)
	c.slots = make([]atomic.Pointer[cacheEntry], size/c.ways*c.ways)
	c.maxBytes = int64(size) * cachePerEntry
	return c
}

// Get is [Classify] of text.
func (c *Cache) Get(text string) Class { return new(Recent).Get(c, text) }

// Recent is the text that one user of a cache asked for last: mostly the next
// one too. Its zero value is ready. It is not safe for concurrent use.
type Recent struct{ last *cacheEntry }

// Get is [Cache.Get].
func (r *Recent) Get(c *Cache, text string) Class {
	if e := r.last; e != nil && e.text == text {
		e.hit()
		return e.class
	}
	e := c.entry(text)
	if e == nil {
		return classify(c.flavor, text)
	}
	r.last = e
	return e.class
}

// hit notes a use. Most calls find it noted, and leave the cache line to other
// readers.
func (e *cacheEntry) hit() {
	if !e.used.Load() {
		e.used.Store(true)
	}
}

// entry finds or makes the entry of a text; nil for one that is not kept.
func (c *Cache) entry(text string) *cacheEntry {
	if len(text) > cacheText || len(c.slots) == 0 || int64(len(text)) > c.maxBytes {
		return nil
	}
	set := c.set(text)
	for i := range set {
		if e := set[i].Load(); e != nil && e.text == text {
			e.hit()
			return e
		}
	}
	// A text may be part of something much larger.
	text = strings.Clone(text)
	e := &cacheEntry{text: text, class: classify(c.flavor, text)}
	c.put(set, e)
	return e
}

// set is where text may be.
func (c *Cache) set(text string) []atomic.Pointer[cacheEntry] {
	sets := uint64(len(c.slots) / c.ways)
	i := int(maphash.String(c.seed, text)%sets) * c.ways
	return c.slots[i : i+c.ways]
}

// put stores e in an empty slot of set, or else evicts an entry that was not
// used since it was last spared.
func (c *Cache) put(set []atomic.Pointer[cacheEntry], e *cacheEntry) {
	if c.bytes.Load()+int64(len(e.text)) > c.maxBytes {
		c.clear()
	}
	first := int(c.turn.Add(1) % uint32(len(set)))
	victim := &set[first%len(set)]
	for i := range set {
		slot := &set[(first+i)%len(set)]
		old := slot.Load()
		if old == nil || !old.used.Swap(false) {
			victim = slot
			break
		}
	}
	c.replace(victim, e)
}

// clear starts over when the texts got too long together.
func (c *Cache) clear() {
	for i := range c.slots {
		c.replace(&c.slots[i], nil)
	}
}

func (c *Cache) replace(slot *atomic.Pointer[cacheEntry], e *cacheEntry) {
	var grown int64
	if e != nil {
		grown = int64(len(e.text))
	}
	if old := slot.Swap(e); old != nil {
		grown -= int64(len(old.text))
	}
	c.bytes.Add(grown)
}
