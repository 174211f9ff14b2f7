package checks

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/gatekeeper/history"
	"github.com/bifrost-rack/bifrost/internal/admintest"
)

var screenshot = flag.String("screenshot", "", "write pictures of the page over a large rack, wide and narrow, light and dark, to this directory: -screenshot $PWD/../docs")

// inDocs are the views of which the documentation has pictures.
var inDocs = []string{"overview", "call", "service"}

// The budgets of the page on a rack of 100 services, 1,000 callers and 1,000 calls a second.
const (
	mostDOM  = 2000 // elements and texts
	mostBusy = 0.2  // of a CPU, for the main thread
)

// startLarge serves a large rack, with the figures of the last hour.
func startLarge(t *testing.T) (*admintest.Large, *admintest.Site) {
	t.Helper()
	now := time.Now()
	rack := admintest.NewLarge(now)
	dir := t.TempDir()
	var lines strings.Builder
	for i := range 60 {
		minute := now.Truncate(time.Minute).Add(time.Duration(i-60) * time.Minute)
		calls := uint64(42_000 + 9000*(i%11) - 4000*(i%7))                                                                                                                                                        //nolint:gosec // positive
		m := history.Minute{Time: minute, Run: now.Add(-2 * time.Hour), Calls: calls, Declared: calls / 30, Failed: uint64(i % 13 * 160), P50: 0.0011 + 0.00002*float64(i%9), P99: 0.0072 + 0.0004*float64(i%17)} //nolint:gosec // positive
		line, err := json.Marshal(map[string]any{"minute": m})
		must(t, err)
		fmt.Fprintf(&lines, "\n%s", line)
	}
	must(t, os.WriteFile(filepath.Join(dir, "minutes"), []byte(lines.String()+"\n"), 0o600))
	past := history.New(dir, slog.New(slog.DiscardHandler))
	var running sync.WaitGroup
	running.Go(func() { past.Run(t.Context(), rack) })
	t.Cleanup(running.Wait)
	l, err := admin.Listen("127.0.0.1:0", nil)
	must(t, err)
	return rack, serve(t, rack, l, past)
}

// largeViews are views of the large rack, by name; a condition says when each is drawn. The call is one that was run again of late.
func largeViews(rack *admintest.Large) [][3]string {
	return [][3]string{
		{"overview", "#/", `document.querySelectorAll('.graph [data-edge]').length > 8 && document.querySelector('#past').dataset.calls > 0 && document.querySelectorAll('.blade').length > 40`},
		{"by-node", "#/?by=node", `document.querySelectorAll('.graph [data-edge]').length > 8`},
		{"calls", "#/calls", `document.querySelectorAll('#calls tbody tr[data-call]').length === 50`},
		{"call", "#/calls/" + rack.Rerun.String(), `document.querySelectorAll('#steps tbody tr[data-step]').length >= 4 && document.querySelector('#steps [data-step="replayed"]').textContent.includes('exit status 3') && document.querySelectorAll('#trace li').length >= 2 && document.querySelector('#call .facts').textContent.includes('declared OutOfStock: OutOfStock({Item:A-17 Left:0})') && document.querySelectorAll('#call [data-header]').length === 2`},
		{"services", "#/services", `document.querySelectorAll('#methods tbody tr[data-method]').length === 50`},
		{"service", "#/services/OrdersStore", `document.querySelectorAll('#service tbody tr').length === 3 && document.querySelectorAll('#latest tr[data-call]').length > 5 && document.querySelectorAll('.graph [data-edge]').length > 2`},
		{"nodes", "#/nodes", `document.querySelectorAll('#nodes tbody tr[data-address]').length === 50`},
		{"node", "#/nodes/" + rack.Client.String(), `document.querySelectorAll('#regions tbody tr[data-region]').length === 50`},
		{"blades", "#/blades", `document.querySelectorAll('#blades tbody tr[data-blade]').length === 50`},
		{"blade", "#/blades/c2", `document.querySelectorAll('#nodes tbody tr[data-address]').length > 5`},
		{"memory", "#/memory", `document.querySelectorAll('#denied tbody tr').length === 50`},
		{"deployments", "#/deployments", `document.querySelectorAll('#apps tbody tr').length === 10`},
		{"deployment", "#/deployments/Stock", `document.querySelectorAll('#app tbody tr').length === 10 && document.querySelector('[data-status="waiting"]').textContent.includes('exit status 3')`},
	}
}

// On a large rack, no view has more elements than its budget, on no screen; nothing is wider than the screen; and in the graph nothing
// overlaps, and each edge ends at boxes. axe finds no violation. With -screenshot the pictures of the documentation are taken.
func TestPage_Large(t *testing.T) {
	rack, s := startLarge(t)
	b := openPage(t, s)
	if *axe == "" {
		t.Log("NOT CHECKED by axe, which scripts/setup.sh fetches from npm")
	}
	for _, view := range largeViews(rack) {
		b.do(chromedp.Navigate(s.URL + "/" + view[1]))
		for _, width := range []int64{1440, 400} {
			for _, scheme := range []string{"light", "dark"} {
				name := fmt.Sprintf("page-%s-%d-%s", view[0], width, scheme)
				b.size(width, 900, width < 500)
				_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
				must(t, err)
				b.until(fmt.Sprintf(`innerWidth === %d && %s`, width, view[2]))
				b.until(`document.documentElement.scrollWidth <= innerWidth`)
				b.until(`document.getAnimations().length === 0`)
				if wide := value[[]string](b, `[...document.querySelectorAll('.scroll')].filter((s) => s.scrollWidth > s.clientWidth).map((s) => s.querySelector('table').id || s.closest('section').id)`); len(wide) > 0 {
					t.Errorf("%s: these tables are wider than their panel: %v", name, wide)
				}
				b.until(overlaps + `.length === 0`)
				if n := value[int](b, `(() => { const w = document.createTreeWalker(document, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT); let n = 0; while (w.nextNode()) n++; return n; })()`); n > mostDOM {
					t.Errorf("%s has %d elements and texts, more than %d", name, n, mostDOM)
				}
				if *screenshot != "" && slices.Contains(inDocs, view[0]) {
					picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
					must(t, err)
					must(t, writeSmall(filepath.Join(*screenshot, name+".png"), picture))
				}
				if width > 500 || scheme == "light" { // colours are those of the wide page
					b.accessible(name)
				}
			}
		}
	}
}

// overlaps lists what is wrong with the call graph that is shown: boxes and labels that overlap, and edges that do not end at boxes.
const overlaps = `(() => {
  const wrong = [];
  const graph = document.querySelector('.graph');
  if (document.querySelector('#past')?.getAttribute('viewBox')?.split(' ')[2] !== document.querySelector('#past')?.clientWidth.toString()) wrong.push('the chart was drawn for another width');
  if (!graph || graph.classList.contains('narrow')) return wrong;
  if (graph.querySelector('svg').getAttribute('width') !== String(graph.clientWidth)) wrong.push('the graph was drawn for another width');
  const things = [...graph.querySelectorAll('.box, .edge text')].map((e) => ({ e, r: e.getBoundingClientRect(), box: e.matches('.box') }));
  things.forEach((a, i) => things.slice(i + 1).forEach((b) => {
    if ((a.box || b.box) && a.r.left < b.r.right - 1 && b.r.left < a.r.right - 1 && a.r.top < b.r.bottom - 1 && b.r.top < a.r.bottom - 1) wrong.push(a.e.textContent + ' is on ' + b.e.textContent);
    if (!a.box && !b.box && a.r.left < b.r.right - 1 && b.r.left < a.r.right - 1 && a.r.top + 3 < b.r.bottom - 3 && b.r.top + 3 < a.r.bottom - 3) wrong.push('label ' + a.e.textContent + ' is on ' + b.e.textContent);
  }));
  const at = graph.querySelector('svg').getBoundingClientRect();
  for (const path of graph.querySelectorAll('.edge path')) {
    const length = path.getTotalLength();
    for (const p of [path.getPointAtLength(0), path.getPointAtLength(length)]) {
      const [x, y] = [p.x + at.x, p.y + at.y];
      if (!things.some(({ box, r }) => box && x >= r.left - 2 && x <= r.right + 2 && y >= r.top - 2 && y <= r.bottom + 2)) wrong.push(path.parentElement.dataset.edge + ' ends at nothing');
    }
    for (let l = 4; l < length - 4; l += 6) {
      const p = path.getPointAtLength(l);
      const [x, y] = [p.x + at.x, p.y + at.y];
      if (things.some(({ box, r }) => box && x > r.left + 2 && x < r.right - 2 && y > r.top + 2 && y < r.bottom - 2)) { wrong.push(path.parentElement.dataset.edge + ' crosses a box'); break; }
    }
  }
  return wrong;
})()`

// boxes says where the boxes of the call graph are.
const boxes = `(() => { const at = document.querySelector('.graph svg')?.getBoundingClientRect(); return [...document.querySelectorAll('.graph .box')].map((e) => { const r = e.getBoundingClientRect(); return e.textContent + ' ' + (r.x - at.x) + ' ' + (r.y - at.y) + '\n'; }).join(''); })()`

// While the rack makes 1,000 calls a second, the boxes of its graph stay where they are, and the page's main thread has time, in the views that follow most of it. Its time is that of the thread: a busy
// machine does not make it longer.
func TestPage_Budget(t *testing.T) {
	rack, s := startLarge(t)
	b := openPage(t, s)
	_, err := chromedp.Call(b.ctx, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks})
	must(t, err)
	busy := func() float64 { // seconds
		metrics, err := chromedp.Call(b.ctx, performance.GetMetrics, cdp.Empty{})
		must(t, err)
		for _, m := range metrics.Metrics {
			if m.Name == "TaskDuration" {
				return m.Value
			}
		}
		t.Fatal("the browser does not measure its tasks")
		return 0
	}
	idle := busy()
	// So much work, not so much time: on a busy machine the thread does not run all the time.
	if n := value[float64](b, `(() => { let n = 0; for (let i = 0; i < 2e8; i++) n = (n * 31 + i) % 1000003; return n; })()`); n == 0 {
		t.Fatal("the browser has not worked")
	}
	if work := busy() - idle; work < 0.05 {
		t.Fatalf("200 million turns of a loop are measured as %.3f s", work)
	}
	for i := range largeViews(rack) {
		view := largeViews(rack)[i] // as of now: calls are forgotten meanwhile
		if !slices.Contains([]string{"overview", "calls", "call", "service", "node"}, view[0]) {
			continue // they follow less
		}
		b.do(chromedp.Navigate(s.URL + "/" + view[1]))
		b.until(view[2])
		places := value[string](b, boxes)
		before, began := busy(), time.Now()
		tick := time.NewTicker(20 * time.Millisecond)
		for range 75 {
			rack.Make(<-tick.C, 20)
		}
		tick.Stop()
		share := (busy() - before) / time.Since(began).Seconds()
		if now := value[string](b, boxes); now != places || view[0] == "overview" && strings.Count(now, "\n") < 9 {
			t.Errorf("%s: the graph's boxes were at\n%s\nand are at\n%s", view[0], places, now)
		}
		t.Logf("%s: the main thread is busy for %.1f %%", view[0], 100*share)
		if share > mostBusy {
			t.Errorf("%s: the main thread is busy for %.1f %%", view[0], 100*share)
		}
	}
}

// accessible fails for each violation that axe finds on what is shown.
func (b *browser) accessible(what string) {
	b.t.Helper()
	if *axe == "" {
		return
	}
	rules, err := os.ReadFile(*axe)
	must(b.t, err)
	value[bool](b, string(rules)+`; window.found = null; axe.run().then(r => { window.found = r.passes.length < 10 ? ['axe has looked at nothing'] :
		r.violations.flatMap(v => v.nodes.map(n => v.id + ' (' + v.impact + '): ' + v.help + ': ' + n.html.slice(0, 200) + ' ' + (n.any[0]?.message ?? ''))) }); true`)
	b.until(`window.found !== null`)
	found := value[[]string](b, `window.found`)
	for _, f := range found[:min(len(found), 5)] {
		b.t.Errorf("%s: %s", what, f)
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
