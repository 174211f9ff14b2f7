package checks

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
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

// shown is what the page shows of a rack, put together from its views.
type shown struct {
	Blades   map[string]string `json:"blades"` // name to status
	Copies   map[string]string `json:"copies"` // memory blade to what it has of its machine
	Edges    map[string]string `json:"edges"`  // caller and callee to number
	Figures  map[string]string `json:"figures"`
	Nodes    []string          `json:"nodes"`
	Services []string          `json:"services"`
	Regions  map[string]string `json:"regions"` // region to controller and readers
	Denied   []string          `json:"denied"`
}

// reads are views, how what they show is read out of their elements, and which part of all that is.
var reads = []struct {
	view, read string
	part       func(v *shown) any
}{
	{"#/", `blades: map('.blade', (e) => [e.dataset.blade, e.querySelector('.pill').textContent]),
    copies: map('.blades.memory .blade', (e) => [e.dataset.blade, e.querySelector('.cause').textContent]),
    edges: map('.graph [data-edge]', (e) => [e.dataset.edge, e.dataset.calls]),
    figures: map('[data-figure]', (e) => [e.dataset.figure, e.querySelector('dd').dataset.value])`,
		func(v *shown) any { return []any{v.Blades, v.Copies, v.Edges, v.Figures} }},
	{"#/nodes", `nodes: all('#nodes tr[data-address]', (e) => e.dataset.address)`, func(v *shown) any { return v.Nodes }},
	{"#/services", `services: all('#services tr[data-service]', (e) => e.dataset.service + ': ' + cell(e, 1))`, func(v *shown) any { return v.Services }},
	{"#/memory", `regions: map('#regions tr[data-region]', (e) => [cell(e, 0), cell(e, 3) + ' > ' + cell(e, 4).split(', ').sort().join(' ')]),
    denied: all('#denied tr[data-pointer]', (e) => [cell(e, 1), cell(e, 2), cell(e, 3)].join(' '))`,
		func(v *shown) any { return []any{v.Regions, v.Denied} }},
}

const reader = `(() => {
  const all = (selector, f) => [...document.querySelectorAll(selector)].map(f);
  const map = (selector, f) => Object.fromEntries(all(selector, f));
  const cell = (tr, i) => tr.children[i].textContent;
  return { %s };
})()`

// expected is what the page should show, by the API.
func expected(s *admintest.Site) (want shown) {
	nodes := admintest.GetAs[api.List[api.Node]](s, "/v1/nodes").Items
	name := map[string]string{}
	for _, n := range nodes {
		name[n.Address.String()] = n.Blade + "/" + n.Name
		want.Nodes = append(want.Nodes, n.Address.String())
	}
	want.Blades, want.Regions, want.Edges, want.Copies = map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}
	for _, b := range admintest.GetAs[api.List[api.Blade]](s, "/v1/blades").Items {
		want.Blades[b.Name] = b.Status
	}
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
	for _, b := range admintest.GetAs[api.List[api.Blade]](s, "/v1/blades").Items {
		if b.Kind == "memory" && b.Cause != "" {
			want.Copies[b.Name] = b.Cause + "; " + want.Copies[b.Name]
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
	for _, e := range admintest.GetAs[api.Graph](s, "/v1/graph").Edges {
		want.Edges[e.From+" → "+e.To] = strconv.FormatUint(e.Calls, 10)
	}
	for _, d := range admintest.GetAs[api.List[api.Denial]](s, "/v1/denied").Items {
		want.Denied = append(want.Denied, name[d.Node.String()]+" "+d.Op+" "+d.Pointer)
	}
	counts := admintest.GetAs[api.Status](s, "/v1/status")
	want.Figures = map[string]string{
		"nodes": strconv.Itoa(counts.Counts.Nodes), "services": strconv.Itoa(counts.Counts.Services), "regions": strconv.Itoa(counts.Counts.Regions), "calls": strconv.Itoa(counts.Counts.Calls),
		"full": strconv.Itoa(counts.Counts.FullStates), "denied": strconv.FormatUint(counts.Counters.Denied, 10),
	}
	return want
}

// normal puts in order what has none.
func (v *shown) normal() {
	for _, list := range [][]string{v.Nodes, v.Services, v.Denied} {
		slices.Sort(list)
	}
	delete(v.Figures, "held") // a rate has no counterpart in the API
}

// view goes to a view of the page that is open.
func (b *browser) view(hash string) {
	b.t.Helper()
	value[bool](b, fmt.Sprintf(`(() => { location.hash = %q; return true; })()`, hash))
}

// same expects that the views show what the API says. The rack is at rest; the page
// follows within moments.
func (b *browser) same(s *admintest.Site) {
	b.t.Helper()
	for _, r := range reads {
		b.view(r.view)
		var got, want string
		for range 100 {
			page, api := value[shown](b, fmt.Sprintf(reader, r.read)), expected(s)
			page.normal()
			api.normal()
			if got, want = fmt.Sprint(r.part(&page)), fmt.Sprint(r.part(&api)); got == want {
				break
			}
			b.do(chromedp.Sleep(100 * time.Millisecond)) // the page's own intervals pass
		}
		if got != want {
			b.t.Errorf("%s shows\n%s\nand the API says\n%s", r.view, got, want)
		}
	}
	b.view("#/")
}

func openPage(t *testing.T, s *admintest.Site) *browser {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a browser")
	}
	b := openBrowser(t)
	b.size(1280, 800, false)
	b.do(chromedp.Navigate(s.URL + "/#token=" + admintest.Token))
	b.until(`document.documentElement.dataset.link === 'live' && document.querySelectorAll('[data-figure]').length > 0`)
	return b
}

// What the page shows is what the API says, and stays so as things happen.
func TestPage_ShowsTheRack(t *testing.T) {
	rack := admintest.StartBusy(t)
	s := startSite(t, rack.Gatekeeper())
	b := openPage(t, s)
	b.same(s)
	if hash := value[string](b, "location.href"); strings.Contains(hash, "token") {
		t.Errorf("the token is still in the address: %s", hash)
	}
	rack.Deny(2)
	b.view("#/memory")
	b.until(`document.querySelectorAll('#denied tr[data-pointer]').length === 5`)
	b.same(s)
	rack.Over()
	b.same(s)
	b.until(`document.querySelector('.feed')?.textContent.includes('s1/back may not write')`)
	must(t, rack.Gatekeeper().MarkFailed(rack.Ctx, "m2", "a test"))
	b.until(`document.querySelector('[data-blade="m2"]')?.dataset.status === 'failed'`)
	b.same(s)
}

// A call has an address of its own, with what became of it and of those that belong together with it, which is the API's.
func TestPage_Call(t *testing.T) {
	rack := admintest.StartBusy(t)
	s := startSite(t, rack.Gatekeeper())
	b := openPage(t, s)
	root := admintest.GetAs[api.List[api.Timeline]](s, "/v1/timelines?roots=true").Items[0]
	b.view("#/calls")
	link := fmt.Sprintf(`#calls a[href="#/calls/%s"]`, root.ID)
	b.until(fmt.Sprintf(`document.querySelector('%s') !== null`, link))
	b.do(chromedp.Click(chromedp.CSS(link)))
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
	b.until(`document.querySelector('[data-action="Cancel"]') !== null`)
	rack.Over()
	b.until(fmt.Sprintf(`%s === %q`, shape, of()))
	b.until(`document.querySelector('[data-action="Cancel"]') === null`)
	if bars := value[int](b, `document.querySelectorAll('#trace li:first-child rect').length`); bars != 3 || !strings.HasSuffix(of(), " 1 ok") {
		t.Errorf("%d bars of %s", bars, of())
	}
	if ticks := value[string](b, `[...document.querySelectorAll('#axis span')].map((e) => e.textContent.split(' ')[0]).join(' ')`); len(strings.Fields(ticks)) != 5 || !strings.HasPrefix(ticks, "0 ") {
		t.Errorf("the trace's axis is %q", ticks)
	}
	if steps := value[string](b, `[...document.querySelectorAll('#steps [data-step]')].map((e) => e.dataset.step).join()`); !strings.HasPrefix(steps, "sent,delivered,") || !strings.HasSuffix(steps, ",replied,answered") {
		t.Errorf("the steps are %s", steps)
	}
	b.do(chromedp.Navigate(s.URL + "/#/calls/" + strings.Repeat("0", 31) + "1"))
	b.expect("404")
	b.until(`document.querySelector('#call-wrong').textContent.includes('not among those that are remembered')`)
}

// The search finds calls by what it is asked for, and the address says what that is.
func TestPage_Search(t *testing.T) {
	_, s := startLarge(t)
	b := openPage(t, s)
	b.view("#/calls")
	b.until(`document.querySelectorAll('#calls tr[data-call]').length === 50`)
	fill := func(name, text string) {
		value[bool](b, fmt.Sprintf(`(() => { document.querySelector('#search [name="%s"]').value = %q; return true; })()`, name, text))
	}
	found := func() []string {
		return value[[]string](b, `[...document.querySelectorAll('#calls tr[data-call]')].map((e) => e.dataset.call)`)
	}
	// search sends the form, and waits until the page has what the API has for the query.
	search := func(query string) {
		t.Helper()
		b.do(chromedp.Click(chromedp.CSS(`#search button`)))
		var want []string
		for _, k := range admintest.GetAs[api.List[api.Timeline]](s, "/v1/timelines?limit=50&"+query).Items {
			want = append(want, k.ID)
		}
		if len(want) == 0 {
			t.Fatalf("the test's search for %s finds nothing", query)
		}
		b.until(fmt.Sprintf(`[...document.querySelectorAll('#calls tr[data-call]')].map((e) => e.dataset.call).join() === %q`, strings.Join(want, ",")))
	}
	fill("service", "OrdersStore")
	fill("method", "put")
	search("service=OrdersStore&method=put")
	fill("code", "unavailable")
	fill("method", "")
	search("service=OrdersStore&code=unavailable")
	if hash := value[string](b, "location.hash"); hash != "#/calls?service=OrdersStore&code=unavailable" {
		t.Errorf("the address is %s", hash)
	}
	b.do(chromedp.Reload())
	b.until(`document.querySelector('#search [name="service"]')?.value === 'OrdersStore' && document.querySelectorAll('#calls tr[data-call]').length > 0`)
	fill("service", "")
	fill("code", "")
	fill("longer", "50")
	search("longer=0.05")
	fill("longer", "")
	value[bool](b, `(() => { document.querySelector('#search [name="rerun"]').checked = true; return true; })()`)
	search("rerun=true")
	value[bool](b, `(() => { document.querySelector('#search [name="rerun"]').checked = false; return true; })()`)
	caller := admintest.GetAs[api.List[api.Timeline]](s, "/v1/timelines?limit=1&roots=true").Items[0].Caller.String()
	node := admintest.GetAs[api.Node](s, "/v1/nodes/"+caller)
	fill("caller", node.Blade+"/"+node.Name)
	search("caller=" + caller)
	fill("caller", "nobody/nowhere")
	b.do(chromedp.Click(chromedp.CSS(`#search button`)))
	b.until(`document.querySelector('#calls .wrong').textContent.startsWith('No node is called nobody/nowhere')`)
	b.view("#/calls?code=declared")
	b.until(`document.querySelectorAll('#calls tr[data-call]').length === 50`)
	if bad := value[int](b, `document.querySelectorAll('#calls td .bad').length`); bad != 0 {
		t.Errorf("%d exceptions that the IDL declares are red", bad)
	}
	first := found()
	b.do(chromedp.Click(chromedp.CSS(`#calls-pager a:last-child`)))
	b.until(fmt.Sprintf(`document.querySelectorAll('#calls tr[data-call]').length === 50 && document.querySelector('#calls tr[data-call="%s"]') === null && location.hash.includes('cursor=')`, first[0]))
}

// What is done on the page is asked about first, and done as it was asked.
func TestPage_Actions(t *testing.T) {
	rack, s := startLarge(t)
	b := openPage(t, s)
	answer := func(action, title, yes string) {
		t.Helper()
		button := fmt.Sprintf(`[data-action="%s"]`, action)
		b.until(fmt.Sprintf(`document.querySelector('%s') !== null`, button))
		b.do(chromedp.Click(chromedp.CSS(button)))
		b.until(fmt.Sprintf(`document.querySelector('#sure').open && document.querySelector('#sure-title').textContent === %q`, title))
		b.accessible("the dialog " + title)
		if yes != "no" && !value[bool](b, `document.querySelector('#sure-cause').closest('label').hidden`) {
			b.do(chromedp.SendKeys(chromedp.CSS("#sure-cause"), "new fans"))
		}
		b.do(chromedp.Click(chromedp.CSS(`#sure button[value="` + yes + `"]`)))
	}
	b.view("#/blades/c3")
	answer("Drain", "Drain c3?", "no")
	b.until(`!document.querySelector('#sure').open`)
	answer("Drain", "Drain c3?", "yes")
	b.until(`!document.querySelector('#sure').open && document.querySelector('[data-action="Return"]') !== null && document.querySelector('#blade').textContent.includes('new fans')`)
	if d := rack.Asked(); !slices.Equal(d, []string{"drain c3: new fans"}) {
		t.Errorf("drained: %q", d)
	}
	b.expect("503") // this Gatekeeper cannot
	answer("Return", "Return c3 to service?", "yes")
	b.until(`document.querySelector('#sure').open && document.querySelector('#sure-wrong').textContent.startsWith('Nothing was done: ')`)
	b.do(chromedp.KeyEvent("\x1b")) // Escape leaves it, too
	b.until(`!document.querySelector('#sure').open`)
	open := rack.Open()
	b.view("#/calls/" + open.String())
	b.until(`document.querySelector('#call .facts')?.textContent.includes('under way for')`)
	button := `document.querySelector('[data-action="Cancel"]')`
	b.until(button + ` !== null`)
	answer("Cancel", "Cancel "+value[string](b, `document.querySelector('#call-title').textContent`)+"?", "yes")
	b.until(`!document.querySelector('#sure').open`)
	if c := rack.Asked(); len(c) != 2 || c[1] != "cancel "+open.String() {
		t.Errorf("cancelled: %v", c)
	}
	b.view("#/memory")
	answer("Free", "Free 0:0:1001:0:0:2::/112?", "yes")
	b.until(`!document.querySelector('#sure').open`)
	if c := rack.Asked(); len(c) != 3 || c[2] != "free ::1001:0:0:2:0:0" {
		t.Errorf("freed: %v", c)
	}
	b.view("#/deployments/Orders")
	answer("Restart", "Restart Orders?", "no")
	b.until(`!document.querySelector('#sure').open`)
	answer("Restart", "Restart Orders?", "yes")
	b.until(`!document.querySelector('#sure').open`)
	answer("Roll back", "Roll back Orders?", "yes")
	b.until(`!document.querySelector('#sure').open`)
	if c := rack.Asked(); len(c) != 5 || c[3] != "restart Orders" || c[4] != "rollback Orders" {
		t.Errorf("asked for: %v", c)
	}
}

// A policy that is chosen is set, if that is confirmed.
func TestPage_Policies(t *testing.T) {
	rack := admintest.StartBusy(t)
	s := startSite(t, rack.Gatekeeper())
	b := openPage(t, s)
	b.view("#/services/Arrays")
	row := `document.querySelector('[data-policy-of="Arrays.addRef"]')`
	says := func(policy, origin string) string {
		return fmt.Sprintf(`%[1]s !== null && %[1]s.lastElementChild.textContent === '%[3]s' && %[1]s.querySelector('select').value === '%[2]s'`, row, policy, origin)
	}
	b.until(says("recover", "default"))
	b.until(row + `.children[1].textContent === '0' && ` + row + `.children[2].textContent === '1'`)
	set := func(policy, answer string) {
		value[bool](b, fmt.Sprintf(`(() => { const s = %s.querySelector('select'); s.focus(); s.value = %q; s.dispatchEvent(new Event('change', { bubbles: true })); return true; })()`, row, policy))
		b.until(`document.querySelector('#sure').open && document.querySelector('#sure-title').textContent.startsWith('Set Arrays.addRef ')`)
		b.do(chromedp.Click(chromedp.CSS(`#sure button[value="` + answer + `"]`)))
		b.until(`!document.querySelector('#sure').open`)
	}
	set("none", "no")
	b.until(says("recover", "default"))
	if p, err := rack.Gatekeeper().Policy(rack.Ctx, "Arrays", "addRef"); err != nil || p.Policy.String() != "recover" {
		t.Errorf("not confirmed, the policy is %+v, %v", p, err)
	}
	value[bool](b, fmt.Sprintf(`(() => { // in one turn, before the dialog tells that it was closed
	  const ask = (policy) => { const s = %s.querySelector('select'); s.value = policy; s.dispatchEvent(new Event('change', { bubbles: true })); };
	  ask('none');
	  document.querySelector('#sure-no').click();
	  ask('tainted');
	  return true;
	})()`, row))
	b.until(`document.querySelector('#sure').open && document.querySelector('#sure-title').textContent === 'Set Arrays.addRef to tainted?'`)
	b.do(chromedp.Click(chromedp.CSS(`#sure-yes`)))
	b.until(`!document.querySelector('#sure').open`)
	b.until(says("tainted", "operator"))
	if p, err := rack.Gatekeeper().Policy(rack.Ctx, "Arrays", "addRef"); err != nil || p.Policy.String() != "tainted" {
		t.Errorf("the policy is %+v, %v", p, err)
	}
	set("default", "yes")
	b.until(says("recover", "default"))
	rack.Over()
	b.until(row + `.children[1].textContent === '1'`)
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
	if calls := value[string](b, `document.querySelector('#past').dataset.calls`); calls != "2" { // Arrays.addRef and Inner.incrementRef
		t.Errorf("the page shows %s calls over time", calls)
	}
	if says := value[string](b, `document.querySelector('#past-says').textContent`); says != "2 calls · 0 failed · kept over restarts" {
		t.Errorf("over the calls stands %q", says)
	}
	b.view("#/calls")
	b.until(fmt.Sprintf(`document.querySelector('#calls tr[data-call="%s"]')?.textContent.includes('before the restart')`, was.ID))
	b.view("#/calls/" + was.ID)
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

// A node's view is reached by keyboard alone, and shows what is that node's; a pointer leads to its region.
func TestPage_Keyboard(t *testing.T) {
	rack := admintest.StartBusy(t)
	s := startSite(t, rack.Gatekeeper())
	b := openPage(t, s)
	back := rack.Nested.Address().String()
	press := func(href string) {
		t.Helper()
		b.until(fmt.Sprintf(`document.querySelector('a[href="%s"]') !== null`, href))
		for range 50 {
			b.do(chromedp.KeyEvent("\t"))
			if value[string](b, `document.activeElement.getAttribute('href') ?? ''`) == href {
				b.do(chromedp.KeyEvent("\r"))
				return
			}
		}
		t.Fatalf("Tab does not lead to %s", href)
	}
	press("#/nodes")
	press("#/nodes/" + url.PathEscape(back))
	b.until(`document.querySelectorAll('#regions tr[data-region]').length === 2 && document.querySelectorAll('#open tr[data-call]').length === 1 && document.querySelectorAll('#latest tr[data-call]').length === 1`)
	b.view("#/memory")
	b.until(`document.querySelectorAll('#regions tr[data-region]').length === 3`)
	b.do(chromedp.SendKeys(chromedp.CSS("#pointer"), rack.A.Add(7).String()+"\r"))
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
	b.expect("status of 503") // a request that is under way when the server ends
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

// A rack without calls has an empty graph, of which nothing is wrong.
func TestPage_Idle(t *testing.T) {
	b := openPage(t, startSite(t, admintest.NewLarge(time.Now().Add(-time.Hour))))
	b.until(`document.querySelector('#graph .folded')?.textContent === 'No call in the last five minutes.'`)
	if height := value[string](b, `document.querySelector('.graph svg').getAttribute('height')`); height != "0" {
		t.Errorf("the empty graph has the height %s", height)
	}
}

// On a laptop and on a phone, nothing is wider than the screen, and everything has a
// name for those who do not see it.
func TestPage_Fits(t *testing.T) {
	rack := admintest.StartBusy(t)
	s := startSite(t, rack.Gatekeeper())
	b := openPage(t, s)
	b.until(`document.querySelectorAll('.graph [data-edge]').length === 2`)
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
