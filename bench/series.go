package bench

import (
	"fmt"
	"slices"
)

// series are the values of one figure, one of each round.
type series []float64

func (s series) median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// String is the median with its spread: "0.61 (0.58–0.66)".
func (s series) String() string {
	if len(s) == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.median(), slices.Min(s), slices.Max(s))
}

// over divides two series round by round.
func (s series) over(base series) series {
	var all series
	for i := range min(len(s), len(base)) {
		all = append(all, s[i]/base[i])
	}
	return all
}

// minus subtracts two series round by round.
func (s series) minus(base series) series {
	var all series
	for i := range min(len(s), len(base)) {
		all = append(all, s[i]-base[i])
	}
	return all
}

// whole is String without decimals, for nanoseconds: "+31 (+28–+40)".
func (s series) whole() string {
	return fmt.Sprintf("%+.0f (%+.0f–%+.0f)", s.median(), slices.Min(s), slices.Max(s))
}
