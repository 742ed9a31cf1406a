package e2e

import (
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// These kinds of the full log are next to each other. The lock is gone by now, so that retried
// entries are delivered.
const (
	retried = "Error 1213 (40001): Deadlock found when trying to get lock; try restarting transaction"
	refused = "Error 1062 (23000): Duplicate entry 'ann@example.com' for key 'orders.email'"
)

// fullLog is 100,000 entries in all states.
func fullLog(t *testing.T) *stage {
	t.Helper()
	s := newStage(t)
	update := "UPDATE orders SET paid = ? WHERE id = ?"
	s.fill(t,
		crowd{n: 200, dataSource: "orders_3", sql: "UPDATE orders SET paid = ? WHERE id = ? AND $N >= 0", args: []any{int64(1), int64(3)}, err: retried, parked: true},
		crowd{n: 200, dataSource: "orders_3", sql: "INSERT INTO customers (id, email, note) VALUES (?, ?, 'by phone') ON DUPLICATE KEY UPDATE id = 1", args: []any{int64(17), "ann@example.com"}, err: refused, parked: true},
		crowd{n: 3_000, dataSource: "ledger", sql: "INSERT INTO entries (account, amount) VALUES (?, ?)", args: []any{"Bob's savings", int64(25)}, err: "Error 1146 (42S02): Table 'ledger.entries' doesn't exist", parked: true},
		crowd{n: 71_600, dataSource: "orders_3", sql: update, args: []any{int64(1), int64(1)}, err: "Error 1205 (HY000): Lock wait timeout exceeded; try restarting transaction", parked: true},
		crowd{n: 20_000, dataSource: "orders_3", sql: update, args: []any{int64(1), int64(2)}},
		crowd{n: 5_000, dataSource: "ledger", sql: "UPDATE notes SET text = '<script>alert(1)</script>' WHERE id = ? OR id = ?", args: []any{int64(1), int64(2)}, leased: true},
	)
	s.history(t, "orders_3", "ledger")
	if n := one(t, s.log, "SELECT COUNT(*) FROM transaction_log"); n != 100_000 {
		t.Fatalf("the log holds %d entries", n)
	}
	s.run(t)
	return s
}

func TestOperatorClearsAFullLog(t *testing.T) {
	s := fullLog(t)
	b := newBrowser(t)

	// The first page lists the stuck writes.
	b.open(s.url + "/")
	b.wants("Overview", "orders_3", "ledger")
	b.counts("10,000+")
	b.accessible("overview")
	b.click("#all-parked")
	b.wants("Deadlock found")
	b.counts("10,000+")
	b.accessible("list")

	// One is found by its error, and read.
	b.fill("#text", "Deadlock found")
	b.click(".filter button[type=submit]")
	b.counts("200 ×")
	b.wants("Deadlock found when trying to get lock")
	b.click("tbody tr:nth-child(2) a.id")
	b.wants("UPDATE orders SET paid = ? WHERE id = ?", "Deadlock found", "Nothing, until an operator decides.")
	b.accessible("entry")

	// It is tried, and nothing changes.
	b.click("#try")
	b.wants("would change 1 row", "run and rolled back")
	if n := one(t, s.target, "SELECT paid FROM orders WHERE id = 3"); n != 0 {
		t.Fatal("a trial has changed the row")
	}
	b.accessible("trial")

	// All entries of the filter are retried, and delivered.
	b.open(s.url + "/entries?state=parked&text=Deadlock+found")
	b.click("#bulk-retry")
	b.wants("Retry 200 entries?", "Deadlock found")
	b.accessible("question")
	b.fill("#reason", "the long transaction was ended")
	b.click("#confirm")
	b.wants("200 entries made due now.")
	b.do(chromedp.Navigate(s.url + "/entries?text=Deadlock+found"))
	b.becomes("No entry matches.")
	if n := one(t, s.target, "SELECT paid FROM orders WHERE id = 3"); n != 1 {
		t.Fatal("the row is not written")
	}
	if n := one(t, s.log, "SELECT COUNT(*) FROM transaction_log WHERE last_error LIKE '%Deadlock%'"); n != 0 {
		t.Fatalf("%d are still in the log", n)
	}

	// Quoted values in its error are masked. One entry is discarded; that requires a reason.
	b.open(s.url + "/entries?text=Duplicate+entry")
	b.wants("Duplicate entry '?' for key 'orders.email'")
	b.click("tbody tr:nth-child(3) a.id")
	var id string
	b.do(chromedp.Text("h1 code", &id, chromedp.ByQuery))
	b.click("#discard")
	b.do(chromedp.Click("#confirm", chromedp.ByQuery)) // the browser wants the reason first
	b.fill("#reason", "ordered twice")
	b.click("#confirm")
	b.wants("1 entry discarded.")
	b.click("nav a:nth-child(3)")
	b.wants("ordered twice", id, "Discard", "the long transaction was ended", "local")
	b.accessible("audit")
	if n := one(t, s.log, "SELECT COUNT(*) FROM transaction_log WHERE id = '"+id+"'"); n != 0 {
		t.Fatal("the discarded entry is still in the log")
	}

	// Values are shown on request, and the request is recorded.
	b.open(s.url + "/entries?text=Duplicate+entry")
	b.click("tbody tr:nth-child(1) a.id")
	b.click("#reveal")
	b.wants("Duplicate entry 'ann@example.com'")
	b.open(s.url + "/audit")
	b.wants("Show parameters")

	// A data source is paused, limited and resumed.
	b.open(s.url + "/")
	b.click("a[href$='/ledger/pause']")
	b.fill("#reason", "its disk is full")
	b.click("#confirm")
	b.wants("The data source is paused.", "paused")
	b.click("a[href$='/ledger/resume']")
	b.click("#confirm")
	b.click("a[href$='/ledger/limit']")
	b.fill("#perSecond", "50")
	b.click("#confirm")
	b.wants("at most 50 a second")
	b.quiet()
	pictures(s, b)
	withoutScripts(s, b)
}

// pictures are those of the documentation.
func pictures(s *stage, b *browser) {
	b.t.Helper()
	list := s.url + "/entries?state=parked"
	b.open(s.url + "/entries?text=Duplicate+entry")
	var entry string
	b.do(chromedp.Evaluate(`document.querySelector("tbody a.id").href`, &entry))
	for _, p := range []struct {
		name, url, scheme string
		phone             bool
	}{
		{"overview-light", s.url + "/?lang=en", "light", false}, {"overview-dark", s.url + "/", "dark", false},
		{"list-light", list, "light", false}, {"list-dark", list, "dark", false},
		{"entry-light", entry, "light", false}, {"entry-dark", entry, "dark", false},
		{"overview-phone", s.url + "/", "light", true}, {"list-phone", list, "dark", true}, {"entry-phone", entry, "light", true},
		{"overview-chinese", s.url + "/?lang=zh", "light", false}, {"list-chinese", list, "light", false}, {"entry-chinese", entry, "light", false},
	} {
		width, height := int64(1200), int64(900)
		if p.phone {
			width, height = 390, 844
		}
		b.do(chromedp.EmulateViewport(width, height), scheme(p.scheme))
		b.open(p.url)
		b.accessible(p.name)
		var over int
		b.do(chromedp.Evaluate(`document.documentElement.scrollWidth - document.documentElement.clientWidth`, &over))
		if over > 0 {
			b.t.Errorf("%s is %d pixels too wide", p.name, over)
		}
		b.shot(p.name)
	}
	b.open(s.url + "/entries?lang=en")
	b.do(chromedp.EmulateViewport(1200, 900), scheme("light"))
	b.quiet()
}

func scheme(name string) chromedp.Action {
	return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}})
}

// withoutScripts repeats the journey in a browser without scripts.
func withoutScripts(s *stage, b *browser) {
	b.t.Helper()
	b.do(emulation.SetScriptExecutionDisabled(true))
	b.do(chromedp.Navigate(s.url+"/entries?text=Lock+wait"), chromedp.WaitVisible("tbody tr:nth-child(2) a.id", chromedp.ByQuery))
	b.do(chromedp.Click("tbody tr:nth-child(2) a.id", chromedp.ByQuery), chromedp.WaitVisible("#retry", chromedp.ByQuery))
	b.do(chromedp.Click("#retry", chromedp.ByQuery), chromedp.WaitVisible("#confirm", chromedp.ByQuery))
	b.do(chromedp.SetValue("#reason", "without scripts", chromedp.ByQuery), chromedp.Click("#confirm", chromedp.ByQuery))
	eventually(b.t, "the retry is in the audit", func() error {
		if one(b.t, s.log, "SELECT COUNT(*) FROM bed_audit WHERE reason = 'without scripts'") != 1 {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	b.do(emulation.SetScriptExecutionDisabled(false))
}
