package demo

import (
	"bufio"
	"context"
	"flag"
	"io"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

var screenshot = flag.String("screenshot", "", "write a picture of the page over the busy rack to this file (docs/page.png)")

// TestServe: the rack is busy, with right results, until it is told to stop; its page
// is where it is said to be.
func TestServe(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		defer w.Close()
		ended <- Serve(ctx, ServeConfig{Address: "127.0.0.1:0", Out: w, Version: "v0"})
	}()
	address := pageAddress(t, r)
	c, err := client.New(client.Config{Address: "http://" + address.Host, Token: strings.TrimPrefix(address.Fragment, "token=")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	seen := map[string]int{}
	watching, enough := context.WithCancel(ctx)
	err = c.Follow(watching, client.FollowOptions{Replay: 100}, func(m client.Message) error {
		if m.Event != nil {
			seen[m.Event.Kind]++
		}
		if seen["access.denied"] > 0 && seen["reply.released"] >= 5 && seen["region.freed"] >= 5 {
			enough()
		}
		return nil
	})
	if ctx.Err() != nil {
		t.Fatalf("%v; seen %v", err, seen)
	}
	s, err := c.Status(ctx)
	if err != nil || s.Counts.Calls == 0 || s.Counts.Regions == 0 || s.Version != "v0" {
		t.Errorf("status %+v, %v", s, err)
	}
	refusals(t, ctx, c)
	if *screenshot != "" {
		takePicture(t, ctx, address.String())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// refusals expects that nothing but accesses was refused.
func refusals(t *testing.T, ctx context.Context, c *client.Client) {
	t.Helper()
	events, err := c.Recent(ctx, 4096, "call.refused", "call.ended", "blade.failed")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		t.Errorf("%s: %+v", e.Kind, e)
	}
}

// pageAddress reads what Serve prints.
func pageAddress(t *testing.T, r io.Reader) *url.URL {
	t.Helper()
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		text := strings.TrimSpace(lines.Text())
		if !strings.HasPrefix(text, "http://") {
			continue
		}
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		go io.Copy(io.Discard, r)
		return u
	}
	t.Fatal("no address is printed")
	return nil
}

// takePicture makes the documentation's picture of the page.
func takePicture(t *testing.T, ctx context.Context, page string) {
	t.Helper()
	ctx, stop := chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox)...)
	defer stop()
	ctx, closeTab := chromedp.NewContext(ctx)
	defer closeTab()
	_, err := chromedp.Call(ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: 1280, Height: 800, DeviceScaleFactor: 1.5,
	})
	if err == nil {
		err = chromedp.Do(ctx, chromedp.Navigate(page), chromedp.Sleep(30*time.Second)) // until the curves have a past
	}
	if err != nil {
		t.Fatal(err)
	}
	// A moment with much to see.
	_, err = chromedp.Run(ctx, chromedp.Poll[bool](`document.querySelectorAll('.graph .edge:not(.past)').length >= 6`))
	if err != nil {
		t.Fatal(err)
	}
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(*screenshot, png, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
