package e2e

import (
	"encoding/json"
	"os"
	"sync"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// axe is axe-core's script (MPL-2.0). make test fetches it (scripts/servers.sh).
var axe = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile(os.Getenv("BED_TEST_AXE"))
	return string(b), err
})

// accessible fails the test if axe-core finds a serious fault in the page.
func (b *browser) accessible(name string) {
	b.t.Helper()
	script, err := axe()
	if err != nil {
		b.t.Fatalf("BED_TEST_AXE is to name axe.min.js of axe-core; make test fetches it: %v", err)
	}
	var found []struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML, FailureSummary string }
	}
	var text string
	b.do(
		chromedp.Evaluate(script, nil),
		chromedp.Evaluate(`axe.run(document, {resultTypes: ["violations"]}).then((r) => JSON.stringify(r.violations))`, &text,
			func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }),
	)
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		b.t.Fatal(err)
	}
	for _, f := range found {
		if f.Impact != "serious" && f.Impact != "critical" {
			b.t.Logf("%s: %s (%s)", name, f.Help, f.Impact)
			continue
		}
		for _, n := range f.Nodes {
			b.t.Errorf("%s: %s (%s, %s): %.300s\n%s", name, f.Help, f.ID, f.Impact, n.HTML, n.FailureSummary)
		}
	}
}
