package sqltext

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// kept counts the entries of the cache.
func (c *Cache) kept() (entries int) {
	for i := range c.sets {
		for j := range c.sets[i] {
			if c.sets[i][j].Load() != nil {
				entries++
			}
		}
	}
	return entries
}

// size is how many texts a cache keeps at most.
const size = cacheSets * cacheWays

// Get is Recent's, by a user who has read no other text.
func (c *Cache) Get(text string) Class { return new(Recent).Get(c, text) }

func TestCacheAnswersAsClassifyDoes(t *testing.T) {
	t.Parallel()
	for i, f := range flavors {
		c := NewCache(f.flavor)
		var recent Recent
		for range 2 {
			for _, text := range texts(t, i) {
				want := classify(f.flavor, text)
				for _, got := range []Class{c.Get(text), recent.Get(c, text), recent.Get(c, text)} {
					if got != want {
						t.Errorf("%s: %q is read as %+v, want %+v", f.name, text, got, want)
					}
				}
			}
		}
	}
}

func TestCacheIsBoundedInEntries(t *testing.T) {
	t.Parallel()
	c := NewCache(MySQL)
	for i := range 20 * size {
		c.Get(fmt.Sprintf("UPDATE t SET a = %d", i))
	}
	if entries := c.kept(); entries != size {
		t.Errorf("a cache for %d texts keeps %d", size, entries)
	}
}

func TestCacheDoesNotKeepLongTexts(t *testing.T) {
	t.Parallel()
	c := NewCache(MySQL)
	text := "UPDATE t SET a = '" + strings.Repeat("x", cacheText) + "'"
	if got := c.Get(text); got != dml {
		t.Errorf("a long UPDATE is read as %+v", got)
	}
	if entries := c.kept(); entries != 0 {
		t.Errorf("%d entries are kept of a text that is too long", entries)
	}
}

// One-time texts, with their values in them, do not evict frequent ones: among many of them, a text
// in use is parsed only once more.
func TestCacheKeepsWhatIsUsed(t *testing.T) {
	t.Parallel()
	const others = 20 * size
	c := NewCache(MySQL)
	const hot = "UPDATE t SET a = ? WHERE id = ?"
	var before *cacheEntry
	renewed := 0
	for i := range others {
		if e := c.entry(hot); e != before {
			before = e
			renewed++
		}
		c.Get(fmt.Sprintf("UPDATE t SET a = %d", i))
	}
	if most := 4 * others / size; renewed > most {
		t.Errorf("beside %d other texts the one in use was read %d times, want %d at the most", others, renewed, most)
	}
}

func TestCacheIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	c := NewCache(MySQL)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				n := (i*7 + g) % 100
				text := fmt.Sprintf("SAVEPOINT Sp%d", n)
				if got, want := c.Get(text), savepoint(fmt.Sprintf("sp%d", n)); got != want {
					t.Errorf("%q is read as %+v", text, got)
					return
				}
			}
		})
	}
	wg.Wait()
}

const typical = "UPDATE orders SET status = ?, updated_at = NOW() WHERE id = ? AND status <> 'done'"

func TestCacheHitTakesNoMemory(t *testing.T) {
	c := NewCache(MySQL)
	for _, text := range []string{typical, "UPDATE t SET n = n + 1", "SAVEPOINT Sp1"} {
		c.Get(text)
		if n := testing.AllocsPerRun(100, func() { c.Get(text) }); n != 0 {
			t.Errorf("a hit for %q takes %v allocations", text, n)
		}
	}
}

func BenchmarkClassify(b *testing.B) {
	for _, f := range flavors {
		b.Run(f.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Classify(f.flavor, typical)
			}
		})
	}
}

func BenchmarkCacheHit(b *testing.B) {
	c := NewCache(MySQL)
	c.Get(typical)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c.Get(typical)
		}
	})
}
