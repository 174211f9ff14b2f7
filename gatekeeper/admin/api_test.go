package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/internal/admintest"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestMachines: the API says which machines have two copies, and why one has not, also
// when a blade has failed.
func TestMachines(t *testing.T) {
	b := startBusy(t)
	s := startSite(t, b.Gatekeeper())
	check := func(pair, single api.Machine) {
		t.Helper()
		got := getAs[api.List[api.Machine]](s, "/v1/machines").Items
		if len(got) != 2 {
			t.Fatalf("machines %+v", got)
		}
		for i, want := range []api.Machine{pair, single} {
			m := got[i]
			if m.Machine != uint8(i+1) || !slices.Equal(m.Blades, want.Blades) || len(m.Copies) != len(want.Copies) || m.InService != want.InService || !strings.Contains(m.Why, want.Why) || (m.Why == "") != (want.Why == "") || m.Capacity != 256<<20 {
				t.Errorf("machine %+v, want %+v", m, want)
			}
		}
	}
	single := api.Machine{Blades: []string{"m3"}, Copies: []string{"m3"}, InService: 1, Why: "blade m3 is not paired with another one"}
	check(api.Machine{Blades: []string{"m1", "m2"}, Copies: []string{"m1", "m2"}, InService: 2}, single)
	b.Broken.Store(true)
	if resp, text := s.Do(s.Request(http.MethodPost, "/v1/blades/m1/fail")); resp.StatusCode != http.StatusOK {
		t.Fatalf("fail m1: %s %s", resp.Status, text)
	}
	check(api.Machine{Blades: []string{"m1", "m2"}, Copies: []string{"m2"}, InService: 1, Why: "blade m1 has failed"}, single)
	if text := string(s.Get("/metrics")); !strings.Contains(text, "\n"+namespace+"_memory_machine_copies{machine=\"1\"} 1\n") {
		t.Errorf("/metrics:\n%s", text)
	}
}

// TestSuggestions: who names a blade that does not exist is told which one may have been
// meant.
func TestSuggestions(t *testing.T) {
	s := startSite(t, startBusy(t).Gatekeeper())
	for _, a := range []struct{ method, path, body, want string }{
		{"GET", "/v1/blades/m9", "", "(did you mean m1, m2 or m3?)"}, {"POST", "/v1/blades/M1/drain", "", "(did you mean m1?)"},
		{"POST", "/v1/blades/nobody/return", "", "(there are c1, s1, s2, m1, m2 and m3)"}, {"GET", "/v1/blades/m9/domain", "", "did you mean"},
		{"POST", "/v1/blades/m1/mirror", `{"onto":"m7"}`, "did you mean"}, {"POST", "/v1/blades/m7/unmirror", "", "did you mean"},
	} {
		r := s.Request(a.method, a.path)
		if a.body != "" {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(a.body)), int64(len(a.body))
			r.Header.Set("Content-Type", "application/json")
		}
		if p := s.Refused(r, http.StatusNotFound); !strings.Contains(p.Detail, a.want) {
			t.Errorf("%s %s: %q, want %q", a.method, a.path, p.Detail, a.want)
		}
	}
}

// What the API says is what is so on the rack.
func TestAnswers(t *testing.T) {
	b := startBusy(t)
	s := startSite(t, b.Gatekeeper())
	status := getAs[api.Status](s, "/v1/status")
	if !status.Switch.Connected || status.Counts.Nodes != 3 || status.Counts.Regions != 3 || status.Counts.Calls != 2 || status.Counters.Denied != 3 ||
		status.Counts.Blades.InUse < 3 || status.Version != "test" {
		t.Errorf("status %+v", status)
	}
	regions := getAs[api.List[api.Region]](s, "/v1/regions?pointer="+b.A.Add(100).String()).Items
	if len(regions) != 1 || regions[0].Controller != b.Caller.Address() || regions[0].Size != 4096 || len(regions[0].Leases) != 2 ||
		!strings.HasPrefix(regions[0].Blade, "m") {
		t.Fatalf("the lent region: %+v", regions)
	}
	calls := getAs[api.List[api.Call]](s, "/v1/calls").Items
	var inner, outer api.Call
	for _, k := range calls {
		if k.Service == "Inner" {
			inner = k
		} else {
			outer = k
		}
	}
	if len(calls) != 2 || inner.Caller != b.Callee.Address() || inner.Callee != b.Nested.Address() || inner.Method != "incrementRef" ||
		outer.Caller != b.Caller.Address() || outer.Callee != b.Callee.Address() {
		t.Errorf("calls %+v", calls)
	}
	lessees := []string{regions[0].Leases[0].Call, regions[0].Leases[1].Call}
	if !slices.Contains(lessees, inner.ID) || !slices.Contains(lessees, outer.ID) {
		t.Errorf("leases %v are not of calls %s and %s", lessees, inner.ID, outer.ID)
	}
	denied := getAs[api.List[api.Denial]](s, "/v1/denied").Items
	if len(denied) != 3 || denied[0].Node != b.Nested.Address() || denied[0].Op != "write" || denied[0].Pointer != b.A.String() {
		t.Errorf("denied %+v", denied)
	}
	questions(b, s, &inner, &outer)
	b.Over()
	if calls := getAs[api.List[api.Call]](s, "/v1/calls").Items; len(calls) != 0 {
		t.Errorf("calls after the end: %+v", calls)
	}
}

// What is done to blades is so on the rack.
func TestActions(t *testing.T) {
	b := startBusy(t)
	s := startSite(t, b.Gatekeeper())
	post := func(path string) (blade api.Blade) {
		t.Helper()
		resp, body := s.Do(s.Request(http.MethodPost, path))
		must(t, json.Unmarshal(body, &blade))
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s\n%s", path, resp.Status, body)
		}
		return blade
	}
	if got := post("/v1/blades/s1/drain"); got.Status != "draining" || got.Cause == "" || len(got.Nodes) != 1 {
		t.Errorf("s1 is %+v", got)
	}
	if _, err := b.Join(b.Ctx, "s1", "late"); rpc.CodeOf(err) != rpc.Unavailable {
		t.Errorf("a node joins a blade that is drained: %v", err)
	}
	if got := post("/v1/blades/s1/return"); got.Status != "in use" || got.Cause != "" {
		t.Errorf("s1 is %+v", got)
	}
	b.Broken.Store(true)
	if got := post("/v1/blades/m1/fail"); got.Status != "failed" || got.Port != 0 {
		t.Errorf("m1 is %+v", got)
	}
	counts := getAs[api.Status](s, "/v1/status").Counts.Blades
	if counts.Failed != 1 || counts.Draining != 0 {
		t.Errorf("blades %+v", counts)
	}
	var kinds []string
	for _, e := range s.recent("blade.draining,blade.returned,blade.failed", 3) {
		kinds = append(kinds, e.Kind+" "+e.Blade)
	}
	if !slices.Equal(kinds, []string{"blade.draining s1", "blade.returned s1", "blade.failed m1"}) {
		t.Errorf("events %q", kinds)
	}
}

// questions asks the call graph about what startBusy has made.
func questions(b *busy, s *site, inner, outer *api.Call) {
	b.T.Helper()
	ids := func(calls []api.Call) (all []string) {
		for _, k := range calls {
			all = append(all, k.ID)
		}
		return all
	}
	chain := getAs[api.List[api.Call]](s, "/v1/calls/"+inner.ID+"/chain").Items
	if !slices.Equal(ids(chain), []string{inner.ID, outer.ID}) {
		b.T.Errorf("chain %+v", chain)
	}
	middle := getAs[api.NodeCalls](s, "/v1/nodes/"+b.Callee.Address().String()+"/calls")
	if !slices.Equal(ids(middle.Waits), []string{inner.ID}) || !slices.Equal(ids(middle.Serves), []string{outer.ID}) {
		b.T.Errorf("the node in the middle: %+v", middle)
	}
	held := getAs[api.Holders](s, "/v1/pointers/"+b.A.String())
	if held.Region.Controller != b.Caller.Address() || len(held.Calls) != 2 || outer.B1.IsZero() {
		b.T.Errorf("who holds %s: %+v; the call %+v", b.A, held, outer)
	}
	domain := getAs[api.FailureDomain](s, "/v1/blades/s2/domain")
	if !slices.Equal(domain.Nodes, []netip.Addr{b.Callee.Address()}) || !slices.Equal(ids(append(domain.Cut, domain.Rerun...)), []string{outer.ID}) ||
		!slices.Equal(ids(domain.Out), []string{inner.ID}) {
		b.T.Errorf("what fails with s2: %+v", domain)
	}
	if d := getAs[api.FailureDomain](s, "/v1/blades/"+held.Region.Blade+"/domain"); len(d.Regions) == 0 {
		b.T.Errorf("what fails with %s: %+v", held.Region.Blade, d)
	}
}

// Every counter of the Gatekeeper is there, by the same name.
func TestCounters_Complete(t *testing.T) {
	var c gatekeeper.Counters
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		v.Field(i).SetUint(uint64(i) + 1)
	}
	want, err := json.Marshal(c)
	must(t, err)
	got, err := json.Marshal(countersOf(&c))
	must(t, err)
	var a, b map[string]uint64
	must(t, json.Unmarshal(want, &a))
	must(t, json.Unmarshal(got, &b))
	if !maps.Equal(a, b) {
		t.Errorf("the API has %s, the Gatekeeper %s", got, want)
	}
}

// Pages put together are the whole list.
func TestPages(t *testing.T) {
	b := startBusy(t)
	s := startSite(t, b.Gatekeeper())
	if whole, parts := getAs[api.List[api.Rule]](s, "/v1/rules?limit=1000"), inPages[api.Rule](s, "/v1/rules?limit=3"); len(parts) < 20 ||
		!slices.EqualFunc(whole.Items, parts, func(a, b api.Rule) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
		t.Errorf("%d rules in pages, %d at once", len(parts), len(whole.Items))
	}
	if parts := inPages[api.Region](s, "/v1/regions?limit=1"); len(parts) != 3 {
		t.Errorf("regions %+v", parts)
	}
	if whole, parts := getAs[api.List[api.Call]](s, "/v1/calls?limit=1000"), inPages[api.Call](s, "/v1/calls?limit=1"); len(parts) != 2 ||
		!slices.EqualFunc(whole.Items, parts, func(a, b api.Call) bool { return a.ID == b.ID }) {
		t.Errorf("calls %+v in pages, %+v at once", parts, whole.Items)
	}
}

func inPages[T any](s *site, path string) (items []T) {
	s.T.Helper()
	for next := ""; ; {
		page := getAs[api.List[T]](s, path+next)
		items = append(items, page.Items...)
		if page.Next == "" {
			return items
		}
		next = "&cursor=" + page.Next
	}
}

// What an operator says of a method holds, and is shown with who said so.
func TestPolicies(t *testing.T) {
	b := startBusy(t)
	s := startSite(t, b.Gatekeeper())
	of := func(method string) string {
		t.Helper()
		for _, p := range getAs[api.List[api.Policy]](s, "/v1/policies").Items {
			if p.Service == "Arrays" && p.Method == method {
				return p.Policy + " " + p.Origin
			}
		}
		return "nothing"
	}
	do := func(method, path, body, want string) {
		t.Helper()
		r, err := http.NewRequestWithContext(b.Ctx, method, s.URL+path, strings.NewReader(body))
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+s.Token)
		r.Header.Set("Content-Type", "application/json")
		resp, answer := s.Do(r)
		var p api.Policy
		must(t, json.Unmarshal(answer, &p))
		if got := p.Policy + " " + p.Origin; resp.StatusCode != http.StatusOK || got != want {
			t.Errorf("%s %s: %s, %s; want %s", method, path, resp.Status, answer, want)
		}
	}
	if got := of("addRef"); got != "recover default" {
		t.Errorf("at first: %s", got)
	}
	do("PUT", "/v1/policies/Arrays", `{"policy":"fate-share"}`, "fate-share operator")
	do("PUT", "/v1/policies/Arrays/addRef", `{"policy":"none"}`, "none operator")
	if add, other, all := of("addRef"), of("incrementRef"), of(""); add != "none operator" || other != "fate-share operator" || all != "fate-share operator" {
		t.Errorf("addRef %s, incrementRef %s, all %s", add, other, all)
	}
	bound := func(want int, by string) {
		t.Helper()
		for _, p := range getAs[api.List[api.Policy]](s, "/v1/policies").Items {
			if p.Service == "Arrays" && p.Method == "addRef" && (p.MaxFailures != want || p.FailuresOrigin != by) {
				t.Errorf("%+v, want %d failures, by %s", p, want, by)
			}
		}
	}
	bound(16, "default")
	do("PUT", "/v1/policies/Arrays", `{"max_failures":0}`, "fate-share operator") // its policy stays
	bound(0, "operator")
	do("PUT", "/v1/policies/Arrays/addRef", `{"max_failures":7}`, "none operator")
	bound(7, "operator")
	for path, body := range map[string]string{"Nobody": `{"policy":"none"}`, "Arrays": `{}`, "Arrays/addRef": `{"max_failures":-1}`} {
		r, err := http.NewRequestWithContext(b.Ctx, http.MethodPut, s.URL+"/v1/policies/"+path, strings.NewReader(body))
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+s.Token)
		r.Header.Set("Content-Type", "application/json")
		if resp, answer := s.Do(r); resp.StatusCode < 400 || resp.StatusCode >= 500 {
			t.Errorf("%s %s: %s, %s", path, body, resp.Status, answer)
		}
	}
	do("DELETE", "/v1/policies/Arrays/addRef", "", "fate-share operator")
	bound(0, "operator")
	do("DELETE", "/v1/policies/Arrays", "", "recover default")
	var said []string
	for _, e := range s.recent("policy.set", 6) {
		said = append(said, e.Service+"."+e.Method+" "+e.Message)
	}
	if !slices.Equal(said, []string{"Arrays. fate-share", "Arrays.addRef none", "Arrays. at most 0 failures", "Arrays.addRef at most 7 failures", "Arrays.addRef default", "Arrays. default"}) {
		t.Errorf("events %q", said)
	}
}

// What became of calls is told while they run, and when they are over.
func TestTimelines(t *testing.T) {
	b := startBusy(t)
	s := startSite(t, b.Gatekeeper())
	calls := map[string]string{} // by service
	for _, k := range getAs[api.List[api.Call]](s, "/v1/calls").Items {
		calls[k.Service] = k.ID
	}
	of := func(id string) api.Trace { return getAs[api.Trace](s, "/v1/calls/"+id+"/timeline") }
	running := of(calls["Inner"])
	if len(running.Calls) != 2 || running.Calls[0].ID != calls["Arrays"] || running.Calls[1].ID != calls["Inner"] || running.Calls[1].Depth != 1 ||
		running.Calls[1].Parent != calls["Arrays"] || running.Calls[0].Over || running.Calls[0].B1.IsZero() || !running.Calls[0].B2.IsZero() {
		t.Errorf("while they run: %+v", running)
	}
	for _, policy := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
		c := arrays.NewArraysClient(b.Caller.Client("Arrays", rpc.WithPolicy(policy)))
		if _, err := c.IncrementRef(b.Ctx, rpc.GlobalPointer(b.Own), 64, 1); rpc.CodeOf(err) != rpc.PermissionDenied {
			t.Errorf("a call with a pointer that somebody else has: %v", err)
		}
	}
	b.Over()
	over := of(calls["Arrays"])
	if len(over.Calls) != 2 {
		t.Fatalf("when they are over: %+v", over)
	}
	outer, inner := over.Calls[0], over.Calls[1]
	times := []time.Time{outer.A1, outer.B1, inner.A1, inner.B1, inner.B2, inner.A2, outer.B2, outer.A2}
	if !slices.IsSortedFunc(times, time.Time.Compare) || outer.A1.IsZero() || !outer.Over || !inner.Over || outer.Code != "" || outer.Method != "addRef" ||
		outer.Caller != b.Caller.Address() || inner.Callee != b.Nested.Address() || outer.Steps[0].Kind != "sent" {
		t.Errorf("when they are over: %+v, times %v", over, times)
	}
	roots := getAs[api.List[api.Timeline]](s, "/v1/timelines?roots=true&node="+b.Callee.Address().String()).Items
	if len(roots) != 1 || roots[0].ID != calls["Arrays"] { // nobody tells of calls that the switch has refused
		t.Errorf("calls that nobody else has made: %+v", roots)
	}
	all := getAs[api.List[api.Timeline]](s, "/v1/timelines").Items
	if pages := inPages[api.Timeline](s, "/v1/timelines?limit=1"); !slices.EqualFunc(all, pages, func(a, b api.Timeline) bool { return a.ID == b.ID }) || len(all) < 2 {
		t.Errorf("%d calls, in pages %d", len(all), len(pages))
	}
}

// silent is a Gatekeeper of which a memory blade does not answer.
type silent struct{ *admintest.Large }

func (silent) Regions(context.Context, gatekeeper.RegionQuery) (gatekeeper.RegionPage, error) {
	return gatekeeper.RegionPage{Missing: []string{"switch", "m1"}}, nil
}

func (silent) Slots(context.Context, gatekeeper.SlotQuery) (gatekeeper.SlotPage, error) {
	return gatekeeper.SlotPage{Missing: []string{"switch"}}, nil
}

func (silent) FailureDomain(context.Context, string) (gatekeeper.FailureDomain, error) {
	return gatekeeper.FailureDomain{Missing: []string{"m1"}}, nil
}

// A list of regions or slots says who has not told of any, and so does what would fail with a blade.
func TestMissing(t *testing.T) {
	site := startSite(t, silent{admintest.NewLarge(time.Now())})
	if l := getAs[api.List[api.Region]](site, "/v1/regions"); !slices.Equal(l.Missing, []string{"switch", "m1"}) {
		t.Errorf("%+v", l)
	}
	if l := getAs[api.List[api.Slot]](site, "/v1/slots"); !slices.Equal(l.Missing, []string{"switch"}) {
		t.Errorf("%+v", l)
	}
	if d := getAs[api.FailureDomain](site, "/v1/blades/m1/domain"); !slices.Equal(d.Missing, []string{"m1"}) {
		t.Errorf("%+v", d)
	}
}

// What the linters of OpenAPI documents ask for, and what a reader of one wants to know: whom to
// ask, and which role each operation needs.
func TestOpenAPI(t *testing.T) {
	s := startSite(t, stopped{})
	var doc struct {
		Info  struct{ Contact struct{ URL string } }
		Paths map[string]map[string]struct{ Summary, Description, OperationID string }
	}
	must(t, json.Unmarshal(s.server.document, &doc))
	if doc.Info.Contact.URL == "" || len(doc.Paths) < 30 {
		t.Errorf("contact %q, %d paths", doc.Info.Contact.URL, len(doc.Paths))
	}
	roles := map[string]string{"list-blades": "read", "drain-blade": "operate", "deploy-app": "deploy", "backup": "deploy", "stream-events": "read"}
	for path, operations := range doc.Paths {
		for method, op := range operations {
			if op.Summary == "" || !strings.Contains(op.Description, "role `"+cmp.Or(roles[op.OperationID], "")) {
				t.Errorf("%s %s: summary %q, description %q", method, path, op.Summary, op.Description)
			}
			delete(roles, op.OperationID)
		}
	}
	if len(roles) > 0 {
		t.Errorf("there are no operations %v", roles)
	}
}
