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
	// A cache has cacheSets sets. A text may be one of the cacheWays entries of a set.
	cacheSets, cacheWays = 512, 4
)

// Cache remembers the classes of texts. It is bounded in entries, and safe for concurrent
// use; a hit takes no lock and no memory.
type Cache struct {
	flavor Flavor
	seed   maphash.Seed
	// Entries are never changed, only replaced.
	sets [cacheSets][cacheWays]atomic.Pointer[cacheEntry]
	// turn chooses the neighbour to replace: a text in use soon returns.
	turn atomic.Uint32
}

type cacheEntry struct {
	text  string
	class Class
}

// NewCache returns a cache of texts of flavor f.
func NewCache(f Flavor) *Cache { return &Cache{flavor: f, seed: maphash.MakeSeed()} }

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
	if len(text) > cacheText {
		return nil
	}
	set := &c.sets[maphash.String(c.seed, text)%cacheSets]
	for i := range set {
		if e := set[i].Load(); e != nil && e.text == text {
			return e
		}
	}
	// A text may be part of a much larger one.
	text = strings.Clone(text)
	e := &cacheEntry{text: text, class: classify(c.flavor, text)}
	set[c.turn.Add(1)%cacheWays].Store(e)
	return e
}
