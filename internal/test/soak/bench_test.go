package soak

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// BenchmarkJudge reads and judges the journal of a faultless run with 1,000,000 writes, and reports
// the memory in use at the end.
func BenchmarkJudge(b *testing.B) {
	const pause, sends = 10 * time.Millisecond, 730_000
	dir := b.TempDir()
	targets := writeHistory(b, filepath.Join(dir, "app.journal"), sends, pause)
	for b.Loop() {
		lines, err := ReadJournals(dir)
		if err != nil {
			b.Fatal(err)
		}
		h := &History{Lines: lines, Targets: targets}
		found, judged := h.judge()
		if len(found) > 0 {
			b.Fatal(found[0])
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.HeapAlloc>>20), "MiB")
		b.ReportMetric(float64(judged.Operations)/float64(judged.Registers), "operations/register")
		runtime.KeepAlive(h)
	}
}

// writeHistory writes the journal of workers with immediate answers, at 400 requests a second, and
// returns the resulting content of the targets.
func writeHistory(b *testing.B, name string, sends int, pause time.Duration) map[string]Target {
	b.Helper()
	f, err := os.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	w := bufio.NewWriter(f)
	out := json.NewEncoder(w)
	targets := map[string]Target{}
	for _, name := range []string{bankM, bankP} {
		targets[name] = Target{Balances: map[int64]int64{}, Registers: map[int64]int64{}}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range sends {
		k := pick(rng)
		at := time.Duration(i) * time.Second / 400
		l := Line{Event: EventSend, Send: fmt.Sprintf("app1-1-0-%d", i), Request: fmt.Sprintf("req-app1-1-0-%d", i), At: int64(at), Kind: k.name, Reads: k.reads}
		l.Steps = k.steps(dice{rng, at, pace(pause), false})
		l.Atomic = k.atomic || len(l.Steps) == 1
		answer := Line{Event: EventAnswer, Send: l.Send, Request: l.Request, At: int64(at + 20*time.Millisecond)}
		for n, step := range l.Steps {
			t, value, outcome := targets[step.Target], int64(1), Delivered
			switch {
			case step.Refuse:
				outcome = Refused
			case step.Op == "":
				t.Balances[step.Account] += step.N
			case step.Op == OpSet:
				t.Registers[step.Account] = step.N
			default:
				t.Registers[step.Account] += step.N // 0 if it only reads
				value = t.Registers[step.Account]
			}
			if !step.Refuse && step.Op != OpRead {
				t.Effects = append(t.Effects, Effect{ID: int64(len(t.Effects)), Name: EffectName(l.Request, n), Account: step.Account, N: step.N})
			}
			targets[step.Target] = t
			answer.Outcomes, answer.Values = append(answer.Outcomes, outcome), append(answer.Values, value)
		}
		for _, l := range []Line{l, answer} {
			if err := out.Encode(l); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	return targets
}
