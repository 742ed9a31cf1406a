package e2e

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

// Thirteen data sources in every state fit a laptop's screen.
func TestOverviewOfThirteenDataSourcesStaysShort(t *testing.T) {
	s := newStage(t)
	var crowds []crowd
	names := []string{"orders_3", "ledger"}
	for i := range 11 {
		names = append(names, fmt.Sprintf("db-%d.eu-west.shop.example.com:3306/warehouse_%d", i, i))
	}
	for i, name := range names {
		crowds = append(crowds, crowd{n: 2 + i, dataSource: name, sql: "UPDATE stock SET n = n - 1 WHERE article = ?", args: []any{int64(7)},
			err: "Error 1205 (HY000): Lock wait timeout exceeded; try restarting transaction", parked: i%2 == 0})
	}
	s.fill(t, crowds...)
	s.history(t, names...)
	s.run(t)
	b := newBrowser(t)
	b.do(chromedp.EmulateViewport(1280, 900))
	b.open(s.url + "/?lang=en")
	b.wants("orders_3", "warehouse_10", "Jobs alive")
	b.accessible("thirteen data sources")
	var height, jobs, charts int
	b.do(chromedp.Evaluate(`document.documentElement.scrollHeight`, &height),
		chromedp.Evaluate(`Math.round(document.querySelector("#jobs").getBoundingClientRect().top)`, &jobs),
		chromedp.Evaluate(`Math.round(document.querySelector("#history").getBoundingClientRect().top)`, &charts))
	t.Logf("%d pixels high; the jobs at %d, the charts at %d", height, jobs, charts)
	if height > 3200 || jobs > 900 || charts < jobs {
		t.Errorf("it is %d pixels high, its jobs are at %d and its charts at %d", height, jobs, charts)
	}
	b.shot("thirteen")
	b.quiet()
}
