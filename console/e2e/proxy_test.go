package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/bedsql/bed/internal/test/webproxy"
)

// An operator works behind an nginx as it comes, below a path.
func TestOperatorWorksBehindNginx(t *testing.T) {
	s := newStage(t)
	s.fill(t,
		crowd{n: 60, dataSource: "orders_3", sql: "UPDATE orders SET paid = ? WHERE id = ? AND $N >= 0", args: []any{int64(1), int64(3)}, err: retried, parked: true},
		crowd{n: 3, dataSource: "ledger", sql: "UPDATE nowhere SET paid = $N", err: "Error 1146 (42S02): Table 'ledger.nowhere' doesn't exist", parked: true})
	s.history(t, "orders_3", "ledger")
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.config, []byte(strings.Replace(string(text), "console: {", "console: {basePath: /bed, ", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run(t)
	s.url = "http://" + webproxy.Nginx(t, "location /bed/ { proxy_pass "+s.url+"/; }") + "/bed"
	b := newBrowser(t)

	// The overview has the kinds of errors, and one leads to its entries.
	b.open(s.url + "/")
	b.until("the page is up to date", upToDate)
	b.becomes("Deadlock found")
	b.click("#k0")
	b.wants("--kind ", "60")
	b.click("tbody tr:nth-child(2) a.id")
	b.click("#try")
	b.wants("would change 1 row", "run and rolled back")
	b.click("#reveal")
	b.wants("int64")
	b.click("#park, #retry")
	b.fill("#reason", "one of them")
	b.click("#confirm")
	b.wants("1 entry made due now.")

	// A bulk action tells how far it is until it is done.
	b.open(s.url + "/entries?state=parked")
	b.becomes("nowhere")
	b.click("#bulk-retry")
	b.click("#confirm")
	b.becomes("62 entries made due now.")
	b.becomes("Of 62 entries retried: 59 delivered, 3 parked, 0 waiting.")

	// The data source is chosen from a list; pages are turned forth and back.
	b.open(s.url + "/entries?order=newest")
	b.do(chromedp.SetValue("#dataSource", "ledger", chromedp.ByQuery))
	b.click(".filter button[type=submit]")
	b.wants("ledger")
	b.click("#bulk-discard")
	b.fill("#reason", "never existed")
	b.click("#confirm")
	b.wants("3 entries discarded.")
	b.open(s.url + "/")
	b.click("a[href$='/ledger/limit']")
	b.fill("#perSecond", "50")
	b.click("#confirm")
	b.wants("at most 50 a second")
	b.click("#h15")
	b.open(s.url + "/audit?lang=zh")
	b.wants("never existed")
	b.open(s.url + "/?lang=en")
	b.until("the page is up to date", upToDate)
	s.command(t, "pause", "ledger")
	b.becomes("Resume…")
	b.quiet()
}

// At 768 pixels, a tablet or half a screen, nothing is wider than the page or broken into letters.
func TestPagesAreReadableAtHalfAScreen(t *testing.T) {
	s := newStage(t)
	s.fill(t,
		crowd{n: 60, dataSource: "orders_3", sql: "INSERT INTO customers (id, email, note) VALUES (?, ?, 'by phone') ON DUPLICATE KEY UPDATE id = $N", args: []any{int64(1), "ann@example.com"}, err: refused, parked: true},
		crowd{n: 60, dataSource: "ledger", sql: "UPDATE orders SET paid = ? WHERE id = ?", args: []any{int64(1), int64(3)}, err: retried, parked: true})
	s.history(t, "orders_3", "ledger")
	s.run(t)
	s.command(t, "discard", "--parked", "--data-source", "ledger", "--yes", "--reason", "the nightly import was repeated by hand, see the log of the operators")
	b := newBrowser(t)
	for i, path := range []string{"/?lang=en", "/?minutes=15", "/entries", "/audit", "/entries?lang=zh", "/audit", "/"} {
		b.do(chromedp.EmulateViewport(768, 1024))
		b.open(s.url + path)
		b.until("it is drawn", `document.querySelector(".plot") === null || document.querySelector(".plot canvas") !== null`)
		var wrong []string
		b.do(chromedp.Evaluate(`Array.from(document.querySelectorAll("main a, main button, main code, main td, main th, main time, main dd"))
			.filter((e) => { const r = e.getBoundingClientRect(); return r.width > 0 && (r.right > innerWidth + 1 || r.width < 60 && r.height > 80); })
			.map((e) => e.outerHTML.slice(0, 120))`, &wrong))
		if len(wrong) > 0 {
			t.Errorf("%s: %d are cut off or too narrow, such as %s", path, len(wrong), wrong[0])
		}
		b.accessible(fmt.Sprintf("768 pixels, %s", path))
		b.shot(fmt.Sprintf("narrow-%d", i))
	}
}
