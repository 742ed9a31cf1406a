package e2e

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// The same as TestAnOperator…, with nothing but the keyboard.
func TestTheKeyboardAloneIsEnough(t *testing.T) {
	s := fullLog(t)
	b := newBrowser(t)
	b.open(s.url + "/")

	b.enter("#all-parked")
	b.tabTo("#text")
	b.do(chromedp.KeyEvent("Deadlock found"))
	b.leave(chromedp.KeyEvent(kb.Enter))
	b.counts("200 ×")
	b.wants("Deadlock found when trying to get lock")
	b.enter("tbody a.id")
	b.wants("UPDATE orders SET paid = ?", "Nothing, until an operator decides.")
	b.enter("#try")
	b.wants("would change 1 row")

	b.enter("nav a[href='/entries']")
	b.tabTo("#text")
	b.do(chromedp.KeyEvent("Deadlock found"))
	b.leave(chromedp.KeyEvent(kb.Enter))
	b.enter("#bulk-retry")
	b.wants("Retry 200 entries?")
	b.tabTo("#reason")
	b.do(chromedp.KeyEvent("by hand"))
	b.enter("#confirm")
	b.wants("200 entries made due now.")
	b.becomes("No entry matches.")
	eventually(t, "all are delivered", func() error {
		if n := one(t, s.log, "SELECT COUNT(*) FROM transaction_log WHERE last_error LIKE '%Deadlock%'"); n > 0 {
			return fmt.Errorf("%d are in the log", n)
		}
		return nil
	})

	b.enter("nav a[href='/entries']")
	b.tabTo("#text")
	b.do(chromedp.KeyEvent("Duplicate entry"))
	b.leave(chromedp.KeyEvent(kb.Enter))
	b.enter("tbody a.id")
	b.enter("#discard")
	b.tabTo("#reason")
	b.do(chromedp.KeyEvent("ordered twice"))
	b.leave(chromedp.KeyEvent(kb.Enter))
	b.wants("1 entry discarded.")
	b.enter("nav a[href='/audit']")
	b.wants("ordered twice", "by hand")
	b.quiet()
}
