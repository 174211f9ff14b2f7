package checks

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// browser is a real browser with one tab. What the page writes to the console as an
// error fails the test, unless it was expected.
type browser struct {
	t        testing.TB
	ctx      context.Context
	mu       sync.Mutex
	errors   []string
	expected []string
}

// patience bounds what must come on a busy machine: the browser's start, and what a page is to show.
const patience = 2 * time.Minute

// openBrowser starts a headless Chromium. Without one the test fails: what people see
// must not go untested by accident.
func openBrowser(t testing.TB) *browser {
	t.Helper()
	names := []string{"chromium", "chromium-browser", "google-chrome"}
	i := slices.IndexFunc(names, func(name string) bool { _, err := exec.LookPath(name); return err == nil })
	if i < 0 {
		t.Fatal("no Chromium on PATH: scripts/setup.sh installs it as root, or leave this out with -short")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.ExecPath(names[i]), chromedp.WSURLReadTimeout(patience))
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	t.Cleanup(cancel)
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(ctx)
	b := &browser{t: t, ctx: ctx}
	console := make(chan struct{})
	messages := chromedp.Console(ctx)
	go func() {
		defer close(console)
		for m, err := range messages {
			if err != nil {
				return
			}
			if m.Type == "error" || m.IsException() {
				b.mu.Lock()
				b.errors = append(b.errors, m.String())
				b.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Error(err)
		}
		closeTab()
		<-console
		for _, e := range b.errors {
			if !slices.ContainsFunc(b.expected, func(x string) bool { return strings.Contains(e, x) }) {
				t.Errorf("the page's console: %s", e)
			}
		}
	})
	return b
}

// expect names console errors that belong to the test.
func (b *browser) expect(text string) { b.expected = append(b.expected, text) }

// size gives the tab the size of a screen.
func (b *browser) size(width, height int64, phone bool) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: height, DeviceScaleFactor: 1, Mobile: phone,
	})
	must(b.t, err)
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	must(b.t, chromedp.Do(b.ctx, actions...))
}

// until waits for a condition in JavaScript.
func (b *browser) until(condition string) {
	b.t.Helper()
	if _, err := chromedp.Run(b.ctx, chromedp.Poll[bool](condition, chromedp.WithPollingTimeout(patience))); err != nil {
		page, _ := chromedp.Run(b.ctx, chromedp.Text(chromedp.CSS("body")))
		b.t.Fatalf("waiting for %s: %v\nthe page:\n%s", condition, err, page)
	}
}

// value evaluates JavaScript.
func value[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	must(b.t, err)
	return v
}
