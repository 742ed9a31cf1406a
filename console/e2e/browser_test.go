package e2e

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

func named(args []any) []driver.NamedValue {
	list := make([]driver.NamedValue, len(args))
	for i, a := range args {
		list[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	return list
}

// A browser is a Chromium of its own, with a profile of its own.
type browser struct {
	t   *testing.T
	ctx context.Context
	// actions counts the operator's steps: pages opened, links and buttons followed, fields filled
	// in.
	actions int
	// complaints are the browser's messages about scripts and the policy.
	complaints chan string
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	profile, err := os.MkdirTemp("", "bed-chromium-") //nolint:usetesting // the browser still writes to it while it ends
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(profile) })
	options := []chromedp.ExecAllocatorOption{
		chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck, chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true),
		chromedp.Flag("lang", "en-US"), chromedp.Env("TZ=Europe/Berlin"), chromedp.UserDataDir(profile), chromedp.WSURLReadTimeout(time.Minute),
	}
	alloc, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 12*time.Minute)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx, complaints: make(chan string, 1000)}
	chromedp.ListenTarget(ctx, func(ev any) {
		switch ev := ev.(type) {
		case *runtime.EventExceptionThrown:
			b.complaints <- ev.ExceptionDetails.Error()
		case *runtime.EventConsoleAPICalled:
			if ev.Type == runtime.APITypeError {
				b.complaints <- fmt.Sprint(ev.Args)
			}
		}
	})
	b.do(chromedp.EmulateViewport(1200, 900))
	// Violations of the policy are reported to the document.
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(`addEventListener("securitypolicyviolation", (e) => console.error("policy: " + e.violatedDirective + " " + e.blockedURI + " " + e.sample))`).Do(ctx)
		return err
	}))
	return b
}

// do runs actions; each has to come to its end within a minute.
func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	ctx := b.ctx
	if b.ctx.Err() != nil || chromedp.FromContext(b.ctx).Target != nil { // the first has the browser live as long as its context
		bounded, cancel := context.WithTimeout(b.ctx, time.Minute)
		defer cancel()
		ctx = bounded
	}
	if err := chromedp.Run(ctx, actions...); err != nil {
		var where, text string
		_ = chromedp.Run(b.ctx, chromedp.Location(&where), chromedp.Text("main", &text, chromedp.ByQuery, chromedp.AtLeast(0)))
		b.t.Fatalf("the browser at %s: %v\n%.600s", where, err, text)
	}
}

func (b *browser) open(url string) {
	b.t.Helper()
	b.actions++
	b.do(chromedp.Navigate(url), chromedp.WaitReady("main"))
	b.until("nothing is left to come", whole)
}

// click moves the pointer to a link or a button, presses it once, and waits for the next page.
func (b *browser) click(selector string) {
	b.t.Helper()
	b.actions++
	x, y := b.aim(selector)
	b.leave(chromedp.MouseClickXY(x, y))
}

// aim moves the pointer to an element, and follows it until it rests there.
func (b *browser) aim(selector string) (x, y float64) {
	b.t.Helper()
	b.do(chromedp.WaitVisible(selector, chromedp.ByQuery))
	eventually(b.t, "the pointer is on "+selector, func() error {
		var at [2]float64
		b.do(
			chromedp.Evaluate(fmt.Sprintf(`(() => {
				const e = document.querySelector(%q);
				e?.scrollIntoView({block: "center", behavior: "instant"});
				const r = e?.getClientRects()[0] ?? {x: -1, y: -1, width: 0, height: 0};
				return [r.x + r.width / 2, r.y + r.height / 2];
			})()`, selector), &at),
		)
		var there bool
		b.do(
			chromedp.MouseEvent(input.MouseMoved, at[0], at[1]),
			chromedp.Evaluate(fmt.Sprintf(`document.elementFromPoint(%v, %v)?.closest(%q) === document.querySelector(%[3]q)`, at[0], at[1], selector), &there),
		)
		if x, y = at[0], at[1]; !there {
			return errors.New("it has gone from there")
		}
		return nil
	})
	return x, y
}

// another is true once a new page has loaded.
const another = `!window.stale && document.readyState === "complete" && document.querySelector("main") !== null`

// whole is true once the list of a large log shows its errors by kind.
const whole = `document.querySelector("#allkinds") === null`

// leave runs an action and waits for the page that it leads to.
func (b *browser) leave(a chromedp.Action) {
	b.t.Helper()
	b.do(chromedp.Evaluate(`window.stale = true`, nil), a)
	b.until("another page is there", another+" && "+whole)
}

// until waits until a script says true. Between two pages there is none to ask.
func (b *browser) until(what, script string) {
	b.t.Helper()
	eventually(b.t, what, func() error {
		var yes bool
		ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
		defer cancel()
		if err := chromedp.Run(ctx, chromedp.Evaluate(script, &yes)); err != nil {
			return err
		}
		if !yes {
			return fmt.Errorf("not yet; the page says %.2000s", b.text())
		}
		return nil
	})
}

func (b *browser) fill(selector, text string) {
	b.t.Helper()
	b.actions++
	b.do(chromedp.Evaluate(fmt.Sprintf(`document.querySelector(%q).value = ""`, selector), nil), chromedp.SendKeys(selector, text, chromedp.ByQuery))
}

// text is the text of the page.
func (b *browser) text() (text string) {
	b.t.Helper()
	b.do(chromedp.Evaluate(`document.querySelector("main")?.innerText ?? ""`, &text))
	return text
}

func (b *browser) wants(parts ...string) {
	b.t.Helper()
	text := b.text()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			b.t.Fatalf("the page does not say %q:\n%.3000s", part, text)
		}
	}
}

// counts reloads the page until its count is complete: after a search of half a second, a count
// shows a plus.
func (b *browser) counts(part string) {
	b.t.Helper()
	eventually(b.t, "the page counts "+part, func() error {
		text := b.text()
		if strings.Contains(text, part) {
			return nil
		}
		b.do(chromedp.Reload(), chromedp.WaitReady("main"))
		b.until("nothing is left to come", whole)
		return fmt.Errorf("it says %.2000s", text)
	})
}

// becomes waits until the page says something, without being loaded again.
func (b *browser) becomes(part string) {
	b.t.Helper()
	b.until("the page says "+part, fmt.Sprintf(`document.querySelector("main").innerText.includes(%q)`, part))
}

// tabTo presses Tab until the element has the focus, like a user without a mouse.
func (b *browser) tabTo(selector string) {
	b.t.Helper()
	script := fmt.Sprintf(`document.activeElement !== null && document.activeElement.matches(%q)`, selector)
	for range 250 {
		var there bool
		b.do(chromedp.KeyEvent(kb.Tab), chromedp.Evaluate(script, &there))
		if there {
			var outline string
			b.do(chromedp.Evaluate(`getComputedStyle(document.activeElement).outlineStyle`, &outline))
			if outline == "none" {
				b.t.Errorf("%s has the focus and does not show it", selector)
			}
			return
		}
	}
	b.t.Fatalf("Tab never comes to %s", selector)
}

// enter goes to an element by Tab and presses Enter on it.
func (b *browser) enter(selector string) {
	b.t.Helper()
	b.tabTo(selector)
	b.leave(chromedp.KeyEvent(kb.Enter))
}

// quiet fails the test after a script error or a violation of the policy.
func (b *browser) quiet() {
	b.t.Helper()
	for {
		select {
		case c := <-b.complaints:
			b.t.Errorf("the browser complains: %s", c)
		default:
			return
		}
	}
}

// shot saves a screenshot in the directory BED_SCREENSHOTS, if set.
func (b *browser) shot(name string) {
	b.t.Helper()
	dir := os.Getenv("BED_SCREENSHOTS")
	if dir == "" {
		return
	}
	var small []byte
	b.do(chromedp.Evaluate(`scrollTo(0, 0)`, nil), chromedp.ActionFunc(func(ctx context.Context) (err error) {
		small, err = page.CaptureScreenshot().WithFormat(page.CaptureScreenshotFormatPng).Do(ctx)
		return err
	}))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), fewerColours(b.t, small), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// browserContext is for commands to the browser, not to a tab.
func (b *browser) browserContext() context.Context {
	c := chromedp.FromContext(b.ctx)
	return cdp.WithExecutor(b.ctx, c.Browser)
}
