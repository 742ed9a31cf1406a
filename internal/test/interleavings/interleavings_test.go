package interleavings

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What the environment may say: how many histories are tried, from which on, and
// at which broken claim the search ends.
const (
	histories = "BED_INTERLEAVINGS"
	firstSeed = "BED_INTERLEAVINGS_SEED"
	until     = "BED_INTERLEAVINGS_UNTIL"
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

func TestNoInterleavingOfWritersJobsAndFaultsBreaksTheRuleOfTruth(t *testing.T) {
	t.Parallel()
	first := setting(t, firstSeed, uint64(time.Now().UnixNano()))
	// Of the histories that break a claim the shortest tells most.
	shortest, often := map[string]*failure{}, map[string]int{}
	for seed := first; seed < first+setting(t, histories, 300); seed++ {
		var broken *failure
		synctest.Test(t, func(*testing.T) { broken = history(seed) })
		if broken == nil {
			continue
		}
		broken.seed = seed
		often[broken.claim]++
		if old := shortest[broken.claim]; old == nil || len(broken.history) < len(old.history) {
			shortest[broken.claim] = broken
		}
		if broken.claim == os.Getenv(until) {
			break
		}
	}
	for claim, f := range shortest {
		t.Errorf("%s, in %d histories: %s\n%s\nto see it again: %s=%d %s=1", claim, often[claim], f.detail, strings.Join(f.history, "\n"), firstSeed, f.seed, histories)
	}
}
