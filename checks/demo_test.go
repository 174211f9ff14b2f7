package checks

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/internal/demo"
)

var screenshot = flag.String("screenshot", "", "write pictures of the page over the busy rack, wide and narrow, to this directory: -screenshot $PWD/docs")

// TestServe: the rack is busy, with right results, until it is told to stop; its page
// is where it is said to be.
func TestServe(t *testing.T) {
	if testing.Short() {
		t.Skip("a rack in real time")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		defer w.Close()
		ended <- demo.Serve(ctx, demo.ServeConfig{Address: "127.0.0.1:0", Out: w, Version: "v0"})
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
	if err != nil || s.Counters.Calls == 0 || s.Counts.Regions == 0 || s.Version != "v0" {
		t.Errorf("status %+v, %v", s, err)
	}
	refusals(t, ctx, c)
	if *screenshot != "" {
		takePictures(t, ctx, address.String())
	}
	switch {
	case testing.Short(): // no browser
	case *axe == "":
		t.Log("NOT CHECKED by axe, which scripts/setup.sh fetches from npm")
	default:
		checkAccessibility(t, ctx, address.String())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// checkAccessibility fails for each violation that axe finds on the page: wide and narrow, light and
// dark, with the trace of a call; and on the dialog that asks before a policy is set.
func checkAccessibility(t *testing.T, ctx context.Context, page string) {
	t.Helper()
	rules, err := os.ReadFile(*axe)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox)...)
	defer stop()
	ctx, closeTab := chromedp.NewContext(ctx)
	defer closeTab()
	err = chromedp.Do(ctx, chromedp.Navigate(page))
	if err == nil {
		_, err = chromedp.Run(ctx, chromedp.Poll[bool](`(() => {
			document.querySelector('#timelines tbody tr button:not([data-select])')?.click();
			return document.querySelectorAll('#trace li').length >= 2;
		})()`))
	}
	look := func(what string) {
		var found []string
		if err == nil {
			found, err = violations(ctx, string(rules))
		}
		for _, f := range found {
			t.Errorf("%s: %s", what, f)
		}
	}
	for _, p := range pictures {
		for _, scheme := range []string{"light", "dark"} {
			if err == nil {
				_, err = chromedp.Call(ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: p.width, Height: p.height, DeviceScaleFactor: 1})
			}
			if err == nil {
				_, err = chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
			}
			look(p.name + ", " + scheme)
		}
	}
	if err == nil {
		_, err = chromedp.Run(ctx, chromedp.Poll[bool](`(() => {
			const s = document.querySelector('#policies select');
			if (s && !document.querySelector('#sure').open) { s.value = 'none'; s.dispatchEvent(new Event('change')); }
			return document.querySelector('#sure').open;
		})()`))
	}
	look("the dialog")
	if err != nil {
		t.Fatal(err)
	}
}

// violations is what axe finds on the page.
func violations(ctx context.Context, rules string) ([]string, error) {
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[bool](rules+`; window.found = null; axe.run().then(r => { window.found = r.passes.length < 10 ? ['axe has looked at nothing'] :
		r.violations.flatMap(v => v.nodes.map(n => v.id + ' (' + v.impact + '): ' + v.help + ': ' + n.html.slice(0, 200) + ' ' + (n.any[0]?.message ?? ''))) }); true`)); err != nil {
		return nil, err
	}
	if _, err := chromedp.Run(ctx, chromedp.Poll[bool](`window.found !== null`)); err != nil {
		return nil, err
	}
	return chromedp.Run(ctx, chromedp.Evaluate[[]string](`window.found`))
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

// pictures are those of the documentation: name, and size of the window.
var pictures = []struct {
	name          string
	width, height int64
}{{"page.png", 1280, 1830}, {"page-narrow.png", 390, 2150}}

// takePictures makes the documentation's pictures of the page under load, wide and narrow,
// with the trace of a call.
func takePictures(t *testing.T, ctx context.Context, page string) {
	t.Helper()
	ctx, stop := chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox)...)
	defer stop()
	ctx, closeTab := chromedp.NewContext(ctx)
	defer closeTab()
	err := chromedp.Do(ctx, chromedp.Navigate(page), chromedp.Sleep(75*time.Second)) // until the curves have a past
	for _, p := range pictures {
		if err == nil {
			_, err = chromedp.Call(ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: p.width, Height: p.height, DeviceScaleFactor: 1})
		}
		if err == nil { // a moment with much to see, and the trace of a call that has made others
			_, err = chromedp.Run(ctx, chromedp.Poll[bool](`(() => {
				const chosen = document.querySelectorAll('#trace li').length >= 2;
				if (!chosen) document.querySelector('#timelines tbody tr button:not([data-select])')?.click();
				return chosen && document.querySelectorAll('.graph .edge:not(.past)').length >= 4;
			})()`))
		}
		var picture []byte
		if err == nil {
			picture, err = chromedp.Run(ctx, chromedp.CaptureScreenshot())
		}
		if err == nil {
			err = writeSmall(filepath.Join(*screenshot, p.name), picture)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// writeSmall writes a PNG with its 256 most frequent colours, which are almost all that a page
// has: it takes a third of the bytes.
func writeSmall(path string, picture []byte) error {
	from, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return err
	}
	count := map[color.RGBA]int{}
	b := from.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			count[color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)]++
		}
	}
	all := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return count[b] - count[a] })
	palette := color.Palette{}
	for _, c := range all[:min(len(all), 256)] {
		palette = append(palette, c)
	}
	to := image.NewPaletted(b, palette)
	draw.Draw(to, b, from, b.Min, draw.Src)
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	return errors.Join(encoder.Encode(f, to), f.Close())
}
