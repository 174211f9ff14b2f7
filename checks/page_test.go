package checks

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/history"
	"github.com/bifrost-rack/bifrost/internal/admintest"
)

// shown is what the page shows, read out of its elements.
type shown struct {
	Blades   map[string]string `json:"blades"` // name to status
	Copies   map[string]string `json:"copies"` // memory blade to what it has of its machine
	Nodes    []string          `json:"nodes"`
	Chips    []string          `json:"chips"`
	Services []string          `json:"services"`
	Regions  map[string]string `json:"regions"` // region to controller and readers
	Calls    []string          `json:"calls"`
	Edges    map[string]string `json:"edges"` // caller and callee to number
	Denied   []string          `json:"denied"`
	Figures  map[string]string `json:"figures"`
	Counters map[string]string `json:"counters"`
}

const readPage = `(() => {
  const all = (selector, f) => [...document.querySelectorAll(selector)].map(f);
  const map = (selector, f) => Object.fromEntries(all(selector, f));
  const cell = (tr, i) => tr.children[i].textContent;
  return {
    blades: map('.blade', (e) => [e.dataset.blade, e.querySelector('.pill').textContent]),
    copies: map('.blades.memory .blade', (e) => [e.dataset.blade, e.querySelector('.copies').textContent]),
    nodes: all('#nodes tr[data-address]', (e) => e.dataset.address),
    chips: all('.chip', (e) => e.dataset.node),
    services: all('#services tr[data-service]', (e) => e.dataset.service + ': ' + cell(e, 1)),
    regions: map('#regions tr[data-region]', (e) => [cell(e, 0), cell(e, 3) + ' > ' + [...e.children[4].children].map((c) => c.textContent).sort().join(' ')]),
    calls: all('#calls tr[data-call]', (e) => cell(e, 0) + ' ' + cell(e, 1) + ' ' + cell(e, 4)),
    edges: map('.graph .edge:not(.past)', (e) => [e.dataset.edge, e.dataset.count]),
    denied: all('#denied tr[data-pointer]', (e) => [cell(e, 1), cell(e, 2), cell(e, 3)].join(' ')),
    figures: map('[data-figure]', (e) => [e.dataset.figure, e.querySelector('dd').dataset.value]),
    counters: map('[data-counter]', (e) => [e.dataset.counter, e.querySelector('dd').dataset.value]),
  };
})()`

// expected is what the page should show, by the API.
func expected(s *admintest.Site) (want shown) {
	nodes := admintest.GetAs[api.List[api.Node]](s, "/v1/nodes").Items
	name := map[string]string{}
	for _, n := range nodes {
		name[n.Address.String()] = n.Blade + "/" + n.Name
		want.Nodes = append(want.Nodes, n.Address.String())
	}
	want.Chips = want.Nodes
	want.Blades, want.Regions, want.Edges = map[string]string{}, map[string]string{}, map[string]string{}
	for _, b := range admintest.GetAs[api.List[api.Blade]](s, "/v1/blades").Items {
		want.Blades[b.Name] = b.Status
	}
	want.Copies = map[string]string{}
	for _, m := range admintest.GetAs[api.List[api.Machine]](s, "/v1/machines").Items {
		for i, b := range m.Blades {
			switch {
			case !slices.Contains(m.Copies, b):
				want.Copies[b] = "no copy: " + m.Why
			case m.InService == 2:
				want.Copies[b] = "mirrored with " + m.Blades[1-i]
			default:
				want.Copies[b] = "one copy: " + m.Why
			}
		}
	}
	for _, v := range admintest.GetAs[api.List[api.Service]](s, "/v1/services").Items {
		var methods []string
		for _, m := range v.Methods {
			methods = append(methods, m.Name)
		}
		want.Services = append(want.Services, v.Name+": "+strings.Join(methods, ", "))
	}
	for _, r := range admintest.GetAs[api.List[api.Region]](s, "/v1/regions").Items {
		readers := map[string]bool{}
		for _, l := range r.Leases {
			readers[name[l.Node.String()]] = true
		}
		want.Regions[r.Region] = name[r.Controller.String()] + " > " + strings.Join(slices.Sorted(maps.Keys(readers)), " ")
	}
	edges := map[string]int{}
	for _, k := range admintest.GetAs[api.List[api.Call]](s, "/v1/calls").Items {
		want.Calls = append(want.Calls, k.ID+" "+k.Service+"."+k.Method+" "+k.Stage)
		edges[k.Caller.String()+" "+k.Callee.String()]++
	}
	for e, n := range edges {
		want.Edges[e] = strconv.Itoa(n)
	}
	for _, d := range admintest.GetAs[api.List[api.Denial]](s, "/v1/denied").Items {
		want.Denied = append(want.Denied, name[d.Node.String()]+" "+d.Op+" "+d.Pointer)
	}
	counts := admintest.GetAs[api.Status](s, "/v1/status")
	want.Figures = map[string]string{
		"nodes": strconv.Itoa(counts.Counts.Nodes), "regions": strconv.Itoa(counts.Counts.Regions), "calls": strconv.Itoa(counts.Counts.Calls),
		"waiting": strconv.Itoa(counts.Counts.Waiting), "denied": strconv.FormatUint(counts.Counters.Denied, 10),
	}
	return want
}

// normal puts in order what has none.
func (v *shown) normal() {
	for _, list := range [][]string{v.Nodes, v.Chips, v.Services, v.Calls, v.Denied} {
		slices.Sort(list)
	}
	for _, figure := range []string{"held", "rules"} { // rates have no counterpart in the API
		delete(v.Figures, figure)
	}
	v.Counters = nil // they go on
}

// same expects that the page shows what the API says. The rack is at rest; the page
// follows within moments.
func (b *browser) same(s *admintest.Site) {
	b.t.Helper()
	var got, want string
	for range 100 {
		page, api := value[shown](b, readPage), expected(s)
		page.normal()
		api.normal()
		if got, want = fmt.Sprintf("%+v", page), fmt.Sprintf("%+v", api); got == want {
			return
		}
		b.do(chromedp.Sleep(100 * time.Millisecond)) // the page's own intervals pass
	}
	b.t.Errorf("the page shows\n%s\nand the API says\n%s", got, want)
}

func openPage(t *testing.T, s *admintest.Site) *browser {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a browser")
	}
	b := openBrowser(t)
	b.size(1280, 800, false)
	b.do(chromedp.Navigate(s.URL + "/#token=" + admintest.Token))
	b.until(`document.documentElement.dataset.link === 'live' && document.querySelectorAll('[data-counter]').length > 0`)
	return b
}

// What the page shows is what the API says, and stays so as things happen.
func TestPage_ShowsTheRack(t *testing.T) {
	rack := admintest.StartBusy(t)
	s := startSite(t, rack.Gatekeeper())
	b := openPage(t, s)
	b.same(s)
	if hash := value[string](b, "location.hash + location.search"); hash != "" {
		t.Errorf("the token is still in the address: %s", hash)
	}
	before := admintest.GetAs[map[string]uint64](s, "/v1/counters")
	b.do(chromedp.Sleep(1200 * time.Millisecond)) // counters are asked for once a second
	got := value[shown](b, readPage).Counters
	after := admintest.GetAs[map[string]uint64](s, "/v1/counters")
	for name := range after {
		n, err := strconv.ParseUint(got[name], 10, 64)
		if err != nil || n < before[name] || n > after[name] {
			t.Errorf("counter %s is shown as %q, it was %d to %d", name, got[name], before[name], after[name])
		}
	}
	if len(got) != len(after) {
		t.Errorf("counters shown %v, there are %v", got, after)
	}
	rack.Deny(2)
	b.until(`document.querySelectorAll('#denied tr[data-pointer]').length === 5`)
	b.same(s)
	rack.Over()
	b.until(`document.querySelectorAll('.graph .edge:not(.past)').length === 0`)
	b.same(s)
	feed := value[string](b, `document.querySelector('.feed').textContent`)
	for _, want := range []string{
		"s1/back may not write", "Reply of Inner.incrementRef held", "Reply of Arrays.addRef goes on to c1/client", "Revoked s2/front: ", "c1/client: read, write, free",
	} {
		if !strings.Contains(feed, want) {
			t.Errorf("the feed does not say %q: %s", want, feed)
		}
	}
	must(t, rack.Gatekeeper().MarkFailed(rack.Ctx, "m2", "a test"))
	b.until(`document.querySelector('[data-blade="m2"]').dataset.status === 'failed'`)
	b.same(s)
}

// The timelines that the page shows are the API's, and a policy that is chosen there
// is set.
func TestPage_TimelinesAndPolicies(t *testing.T) {
	rack := admintest.StartBusy(t)
	s := startSite(t, rack.Gatekeeper())
	b := openPage(t, s)
	root := admintest.GetAs[api.List[api.Timeline]](s, "/v1/timelines?roots=true").Items[0]
	b.until(fmt.Sprintf(`document.querySelector('#timelines tr[data-call="%s"]') !== null`, root.ID))
	b.do(chromedp.Click(chromedp.CSS(fmt.Sprintf(`#timelines tr[data-call="%s"] td`, root.ID))))
	shape := `[...document.querySelectorAll('#trace li')].map((e) => e.dataset.call + ' ' + e.dataset.depth + ' ' + e.dataset.outcome).join()`
	of := func() string {
		var lines []string
		for _, k := range admintest.GetAs[api.Trace](s, "/v1/calls/"+root.ID+"/timeline").Calls {
			outcome := "running"
			if k.Over {
				outcome = "ok"
			}
			lines = append(lines, fmt.Sprintf("%s %d %s", k.ID, k.Depth, outcome))
		}
		return strings.Join(lines, ",")
	}
	b.until(fmt.Sprintf(`%s === %q`, shape, of()))
	rack.Over()
	b.until(fmt.Sprintf(`%s === %q`, shape, of()))
	if bars := value[int](b, `document.querySelectorAll('#trace li:first-child rect').length`); bars != 3 || !strings.HasSuffix(of(), " 1 ok") {
		t.Errorf("%d bars of %s", bars, of())
	}
	if ticks := value[string](b, `[...document.querySelectorAll('#axis span')].map((e) => e.textContent.replace(/ ms$/, '')).join(' ')`); len(strings.Fields(ticks)) != 5 || !strings.HasPrefix(ticks, "0 ") {
		t.Errorf("the trace's axis is %q", ticks)
	}
	figures := func() (m api.MethodFigures) {
		for _, m := range admintest.GetAs[api.List[api.MethodFigures]](s, "/v1/methods").Items {
			if m.Method == "addRef" {
				return m
			}
		}
		t.Fatal("the API has no figures of addRef")
		return m
	}
	if m := figures(); m.Calls != 1 || m.Open != 0 || m.P50 <= 0 || m.P99 < m.P50 || m.Slow != root.ID {
		t.Errorf("figures %+v", m)
	}
	b.until(`[...document.querySelectorAll('#methods tbody tr')].some((tr) => tr.textContent.startsWith('Arrays.addRef10'))`)
	value[bool](b, `(() => { const w = document.querySelector('#words'); w.value = 'inner INCREMENT'; w.dispatchEvent(new Event('input', { bubbles: true })); return true; })()`)
	b.until(`document.querySelectorAll('#methods tbody tr').length === 1 && document.querySelector('#methods tbody').textContent.startsWith('Inner.incrementRef')`)
	value[bool](b, `(() => { const w = document.querySelector('#words'); w.value = ''; w.dispatchEvent(new Event('input', { bubbles: true })); return true; })()`)
	row := `document.querySelector('[data-policy-of="Arrays.addRef"]')`
	b.until(row + ` !== null && ` + row + `.children[3].textContent === 'default'`)
	set := func(policy, answer string) {
		b.do(chromedp.Focus(chromedp.CSS(`[data-policy-of="Arrays.addRef"] select`)))
		value[bool](b, fmt.Sprintf(`(() => { const s = %s.querySelector('select'); s.value = %q; s.dispatchEvent(new Event('change', { bubbles: true })); return true; })()`, row, policy))
		b.until(`document.querySelector('#sure').open && document.querySelector('#sure-title').textContent.startsWith('Set Arrays.addRef ')`)
		b.do(chromedp.Click(chromedp.CSS(`#sure button[value="` + answer + `"]`)))
		b.until(`!document.querySelector('#sure').open`)
	}
	set("none", "no")
	b.until(row + `.querySelector('select').value === 'recover'`)
	if p, err := rack.Gatekeeper().Policy(rack.Ctx, "Arrays", "addRef"); err != nil || p.Policy.String() != "recover" {
		t.Errorf("not confirmed, the policy is %+v, %v", p, err)
	}
	set("tainted", "yes")
	b.until(row + `.children[3].textContent === 'operator' && ` + row + `.querySelector('select').value === 'tainted'`)
	if p, err := rack.Gatekeeper().Policy(rack.Ctx, "Arrays", "addRef"); err != nil || p.Policy.String() != "tainted" {
		t.Errorf("the policy is %+v, %v", p, err)
	}
	set("default", "yes")
	b.until(row + `.children[3].textContent === 'default' && ` + row + `.querySelector('select').value === 'recover'`)
}

// After a restart of the Gatekeeper the API and the page have the calls, failures and figures of
// the run before, and say that they are older.
func TestPage_FormerRuns(t *testing.T) {
	dir := t.TempDir()
	remember := func(rack *admintest.Busy) (s *admintest.Site, stop func()) {
		l, err := admin.Listen("127.0.0.1:0", nil)
		must(t, err)
		past := history.New(dir, slog.New(slog.NewTextHandler(t.Output(), nil)))
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { past.Run(ctx, rack.Gatekeeper()) })
		stop = func() { cancel(); running.Wait() }
		t.Cleanup(stop)
		return serve(t, rack.Gatekeeper(), l, past), stop
	}
	former := admintest.StartBusy(t)
	s, stop := remember(former)
	former.Over()
	was := admintest.GetAs[api.List[api.Timeline]](s, "/v1/timelines?roots=true").Items[0]
	must(t, former.Gatekeeper().MarkFailed(former.Ctx, "m2", "a fault before the restart"))
	for !strings.Contains(string(s.Get("/v1/events/recent?kind=blade.failed")), "before the restart") {
		runtime.Gosched() // the event is on its way to the hub
	}
	stop()

	rack := admintest.StartBusy(t, "another") // incarnations go on over a restart, so calls have other ids
	s, _ = remember(rack)
	b := openPage(t, s)
	b.until(`document.querySelector('#past').dataset.calls > 0`)
	b.until(fmt.Sprintf(`document.querySelector('#timelines tr[data-call="%s"]')?.textContent.includes('before the restart')`, was.ID))
	if calls := value[string](b, `document.querySelector('#past').dataset.calls`); calls != "2" { // Arrays.addRef and Inner.incrementRef
		t.Errorf("the page shows %s calls over time", calls)
	}
	if says := value[string](b, `document.querySelector('#past-says').textContent`); !strings.HasPrefix(says, "2 calls, 0 failed · 99 % within ") || !strings.HasSuffix(says, "kept over restarts") {
		t.Errorf("over the calls stands %q", says)
	}
	b.do(chromedp.Click(chromedp.CSS(fmt.Sprintf(`#timelines tr[data-call="%s"] td`, was.ID))))
	b.until(`document.querySelectorAll('#trace li').length === 2`)
	if h := admintest.GetAs[api.History](s, "/v1/history"); !h.Kept || h.Calls != 2 || h.Since.After(was.A2) || !h.Began.After(was.A2) {
		t.Errorf("%+v", h)
	}
	if n := strings.Count(string(s.Get("/v1/events/recent?kind=blade.failed")), "before the restart"); n != 1 {
		t.Errorf("the failure before the restart is there %d times", n)
	}
	var ids []string // in pages, each call once
	for cursor := ""; ; {
		page := admintest.GetAs[api.List[api.Timeline]](s, "/v1/timelines?limit=1&cursor="+cursor)
		for _, k := range page.Items {
			ids = append(ids, k.ID)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if all := admintest.GetAs[api.List[api.Timeline]](s, "/v1/timelines").Items; len(ids) != len(all) || len(all) < 4 {
		t.Errorf("%d calls in pages of one, %d at once", len(ids), len(all))
	}
}

// A node is chosen by keyboard; the page then shows what is that node's.
func TestPage_Keyboard(t *testing.T) {
	rack := admintest.StartBusy(t)
	s := startSite(t, rack.Gatekeeper())
	b := openPage(t, s)
	back := rack.Nested.Address().String()
	b.until(fmt.Sprintf(`document.querySelector('.chip[data-node="%s"]')`, back) + ` !== null`)
	for range 50 {
		b.do(chromedp.KeyEvent("\t"))
		if value[string](b, `document.activeElement.dataset.node ?? ''`) == back {
			break
		}
	}
	b.do(chromedp.KeyEvent("\r"))
	b.until(fmt.Sprintf(`document.activeElement.dataset.node === '%s' && document.activeElement.getAttribute('aria-pressed') === 'true'`, back))
	b.until(`document.querySelectorAll('#regions tr[data-region]').length === 2 && document.querySelectorAll('#calls tr[data-call]').length === 1`)
	b.do(chromedp.KeyEvent("\x1b"))
	b.until(`document.querySelectorAll('#regions tr[data-region]').length === 3`)
	b.do(chromedp.SendKeys(chromedp.CSS("#pointer"), rack.A.Add(7).String()))
	b.until(`document.querySelectorAll('#regions tr[data-region]').length === 1`)
}

func TestPage_AsksForTheToken(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser")
	}
	rack := admintest.StartBusy(t)
	s := startSite(t, rack.Gatekeeper())
	b := openBrowser(t)
	b.expect("401")
	b.do(chromedp.Navigate(s.URL + "/"))
	b.until(`document.querySelector('#ask').open`)
	b.do(chromedp.SendKeys(chromedp.CSS("#token"), "a-token-that-is-wrong\r"))
	b.until(`document.querySelector('#ask').open && document.querySelector('#ask-wrong').textContent.includes('wrong')`)
	b.do(chromedp.SendKeys(chromedp.CSS("#token"), admintest.Token+"\r"))
	b.until(`!document.querySelector('#ask').open && document.documentElement.dataset.link === 'live'`)
	b.do(chromedp.Reload())
	b.until(`document.documentElement.dataset.link === 'live'`)
	b.same(s)
	b.do(chromedp.Click(chromedp.CSS("#forget")))
	b.do(chromedp.WaitVisible(chromedp.CSS("#ask[open]"))) // the page is loaded anew
	if n := value[int](b, "sessionStorage.length"); n != 0 {
		t.Error("the token is kept")
	}
}

// When the Gatekeeper is away the page says so, and goes on when it is back.
func TestPage_ConnectsAgain(t *testing.T) {
	rack := admintest.StartBusy(t)
	first, end := context.WithCancel(t.Context())
	l, err := admin.Listen("127.0.0.1:0", nil)
	must(t, err)
	address := l.Addr().String()
	ended := make(chan error, 1)
	go func() { ended <- newServer(t, rack.Gatekeeper(), nil).Run(first, l) }()
	b := openPage(t, &admintest.Site{T: t, URL: "http://" + address})
	b.expect("net::ERR")
	end()
	must(t, <-ended)
	b.until(`document.documentElement.dataset.link === 'lost' && !document.querySelector('#trouble').hidden`)
	rack.Deny(2)
	l, err = admin.Listen(address, nil)
	must(t, err)
	again := serve(t, rack.Gatekeeper(), l, nil)
	b.until(`document.documentElement.dataset.link === 'live' && document.querySelector('#trouble').hidden`)
	b.same(again)
}

// On a laptop and on a phone, nothing is wider than the screen, and everything has a
// name for those who do not see it.
func TestPage_Fits(t *testing.T) {
	rack := admintest.StartBusy(t)
	s := startSite(t, rack.Gatekeeper())
	b := openPage(t, s)
	b.do(chromedp.Click(chromedp.CSS("#calls summary")))
	for _, width := range []int64{1280, 1024, 768, 390, 320} {
		b.size(width, 844, width < 500)
		b.until(fmt.Sprintf(`innerWidth <= %d`, width))
		b.until(`document.documentElement.scrollWidth <= innerWidth`)
	}
	nameless := value[[]string](b, `[...document.querySelectorAll('button, input:not(.hidden), select, [role], img, table')]
	  .filter((e) => !(e.textContent.trim() || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.labels?.length || e.hasAttribute('alt') || e.closest('[hidden]') || ['status', 'alert'].includes(e.getAttribute('role'))))
	  .map((e) => e.outerHTML)`)
	if len(nameless) > 0 {
		t.Errorf("without a name: %q", nameless)
	}
	if n := value[int](b, `document.querySelectorAll('th:not([scope])').length`); n > 0 {
		t.Errorf("%d headers of tables without a scope", n)
	}
}
