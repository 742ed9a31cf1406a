package simulation

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/jitter"
)

func init() { besteffort.Strict = true }

// These variables set the number of histories, the first seed, the longest time, and the broken
// claim that ends the search.
const (
	histories = "BED_SIMULATE"
	firstSeed = "BED_SIMULATE_SEED"
	until     = "BED_SIMULATE_UNTIL"
)

func setting(t *testing.T, name string, without uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return without
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// inBubble runs f in virtual time. The log's pools of requests must hold none of
// another bubble: two collections empty them.
func inBubble(t *testing.T, f func()) {
	jitter.Fix()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // who wakes first is not by chance then
	runtime.GC()
	runtime.GC()
	synctest.Test(t, func(*testing.T) { f() })
}

// perBubble is the number of histories sharing that cost.
const perBubble = 50

// The tests of this package are not parallel: see inBubble. The seed is their only source of
// randomness.
func TestNoInterleavingOfWritersBreaksTheRule(t *testing.T) { search(t, nil, 300) }

func TestNoInterleavingOfKeysBreaksTheRule(t *testing.T) { search(t, endOfAKey, 300) }

func TestNoInterleavingInDoubtBreaksTheRule(t *testing.T) { search(t, inDoubt, 50) }

func TestNoInterleavingAtHomeBreaksTheRule(t *testing.T) { search(t, atHome, 50) }

func TestNoInterleavingOfRequiredRowsBreaksTheRule(t *testing.T) { search(t, aboutRows, 150) }

func TestNoInterleavingOfOrderKeysBreaksTheRule(t *testing.T) { search(t, inOrder, 100) }

func TestNoInterleavingOfOrderKeysInSQLBreaksTheRule(t *testing.T) { search(t, inOrderInSQL, 30) }

func TestNoInterleavingOfGroupsBreaksTheRule(t *testing.T) { search(t, aboutGroups, 30) }

// search tries histories about f, or about everything if f is nil. Their number is n unless the
// environment sets it.
func search(t *testing.T, f *focus, without uint64) {
	first := setting(t, firstSeed, uint64(time.Now().UnixNano()))
	end := first + setting(t, histories, without)
	// Of the histories breaking a claim, the shortest is the most telling.
	shortest, often := map[string]*world{}, map[string]int{}
	found, steps, messages := false, 0, 0
	for from := first; from < end && !found; from += perBubble {
		inBubble(t, func() {
			for seed := from; seed < min(end, from+perBubble) && !found; seed++ {
				w := history(seed, f)
				steps, messages = steps+w.steps, messages+w.n.sent
				if w.broken == nil {
					continue
				}
				claim := w.broken.claim
				often[claim]++
				if old := shortest[claim]; old == nil || len(w.history) < len(old.history) {
					shortest[claim] = w
				}
				found = claim == os.Getenv(until) || os.Getenv(until) == "any"
			}
		})
	}
	t.Logf("%d histories from seed %d, %d steps, %d messages", end-first, first, steps, messages)
	for claim, w := range shortest {
		t.Errorf("%s, in %d histories: %s\n%s\nto see it again: %s=%d %s=1", claim, often[claim], w.broken.detail, strings.Join(w.history, "\n"), firstSeed, w.seed, histories)
	}
}

// Order keys with the log in SQL are left out. When the context of a log transaction ends, a
// goroutine of database/sql rolls it back, and the runtime chooses the next of several writers
// waiting for one key. One seed in forty differs.
func TestTheSameSeedGivesTheSameHistory(t *testing.T) {
	first := setting(t, firstSeed, uint64(time.Now().UnixNano()))
	var told [2][][]string
	for i := range told {
		inBubble(t, func() {
			for seed := first; seed < first+setting(t, histories, 300)/6; seed++ {
				told[i] = append(told[i], history(seed, []*focus{nil, endOfAKey, inDoubt, atHome, aboutRows, inOrder, aboutGroups}[seed%7]).history)
			}
		})
	}
	for n := range told[0] {
		one, other := told[0][n], told[1][n]
		if slices.Equal(one, other) {
			continue
		}
		at := 0
		for at < min(len(one), len(other)) && one[at] == other[at] {
			at++
		}
		t.Errorf("seed %d gives two histories, from line %d on:\n%s\nand\n%s", first+uint64(n), at+1,
			strings.Join(one[max(0, at-3):min(len(one), at+4)], "\n"), strings.Join(other[max(0, at-3):min(len(other), at+4)], "\n"))
	}
}
