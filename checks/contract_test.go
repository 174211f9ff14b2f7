package checks

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/backup"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/admintest"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// contract is the OpenAPI document as somebody else would read it: as plain JSON
// with JSON schemas in it. It holds responses against it.
type contract struct {
	doc      map[string]any
	compiler *jsonschema.Compiler
	used     map[string]bool // "GET /v1/status 200"
}

func newContract(t testing.TB, document []byte) *contract {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	must(t, err)
	c := &contract{doc: v.(map[string]any), compiler: jsonschema.NewCompiler(), used: map[string]bool{}}
	c.compiler.AssertFormat()
	c.compiler.DefaultDraft(jsonschema.Draft2020) // OpenAPI 3.1's
	must(t, c.compiler.AddResource("openapi.json", v))
	return c
}

// operations lists "GET /v1/status" and so on.
func (c *contract) operations() (all []string) {
	for path, item := range c.doc["paths"].(map[string]any) {
		for method := range item.(map[string]any) {
			all = append(all, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(all)
	return all
}

// find returns the documented path that a request's path matches.
func (c *contract) find(r *http.Request) (path string, ok bool) {
	asked := strings.Split(r.URL.Path, "/")
	for _, op := range c.operations() {
		method, path, _ := strings.Cut(op, " ")
		parts := strings.Split(path, "/")
		if method == r.Method && slices.EqualFunc(parts, asked, func(p, a string) bool { return p == a || strings.HasPrefix(p, "{") }) {
			return path, true
		}
	}
	return "", false
}

// check holds a response against the document: its status, its type, its body.
func (c *contract) check(r *http.Request, resp *http.Response, body []byte) error {
	path, ok := c.find(r)
	if !ok {
		return fmt.Errorf("%s %s is not in the document", r.Method, r.URL.Path)
	}
	status := strconv.Itoa(resp.StatusCode)
	at := []string{"paths", path, strings.ToLower(r.Method), "responses", status}
	c.used[fmt.Sprintf("%s %s %s", r.Method, path, status)] = true
	if c.look(at) == nil {
		return fmt.Errorf("%s %s: status %s is not in the document", r.Method, path, status)
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return err
	}
	if at = append(at, "content", kind, "schema"); c.look(at) == nil {
		return fmt.Errorf("%s %s: %s of status %s is not in the document", r.Method, path, kind, status)
	}
	if kind == "application/gzip" {
		return backup.Read(bytes.NewReader(body), nothing{})
	}
	if err := c.validate(pointer(at), body); err != nil {
		return fmt.Errorf("%s %s, status %s: %w\n%s", r.Method, r.URL, status, err, body)
	}
	return nil
}

// nothing takes a backup, and keeps nothing of it.
type nothing struct{}

func (nothing) Manifest(backup.Manifest) error                      { return nil }
func (nothing) Record(wal.Record) error                             { return nil }
func (nothing) Ledgers(backup.Blade, []control.LedgerContent) error { return nil }
func (nothing) Regions(backup.Blade, []byte) error                  { return nil }

// look follows keys into the document.
func (c *contract) look(keys []string) any {
	var v any = c.doc
	for _, k := range keys {
		m, _ := v.(map[string]any)
		v = m[k]
	}
	return v
}

// validate holds JSON against a schema in the document.
func (c *contract) validate(pointer string, body []byte) error {
	s, err := c.compiler.Compile("openapi.json#" + pointer)
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

// pointer makes a JSON pointer of keys.
func pointer(keys []string) string {
	var b strings.Builder
	for _, k := range keys {
		b.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(k))
	}
	return b.String()
}

// The contract notices what is wrong; else its silence would mean nothing.
func TestContract_Notices(t *testing.T) {
	c := newContract(t, startSite(t, admintest.Stopped{}).Get("/v1/openapi.json"))
	good := `{"items":[{"time":"2026-01-01T00:00:00Z","port":1,"node":"fd00::1","op":"read","pointer":"::1"}]}`
	for what, tc := range map[string]struct {
		path   string
		status int
		kind   string
		body   string
		ok     bool
	}{
		"right":                  {"/v1/denied", 200, "application/json", good, true},
		"an unknown path":        {"/v1/none", 200, "application/json", good, false},
		"an unknown status":      {"/v1/denied", 204, "application/json", good, false},
		"another type":           {"/v1/denied", 200, "text/plain", good, false},
		"no items":               {"/v1/denied", 200, "application/json", `{}`, false},
		"null for a list":        {"/v1/denied", 200, "application/json", `{"items":null}`, false},
		"a wrong address":        {"/v1/denied", 200, "application/json", strings.Replace(good, "fd00::1", "c1", 1), false},
		"a number for a text":    {"/v1/denied", 200, "application/json", strings.Replace(good, `"read"`, `4`, 1), false},
		"a wrong time":           {"/v1/denied", 200, "application/json", strings.Replace(good, "2026-01-01T", "", 1), false},
		"a required field less":  {"/v1/denied", 200, "application/json", strings.Replace(good, `"port":1,`, "", 1), false},
		"no JSON":                {"/v1/denied", 200, "application/json", `{`, false},
		"a problem for the list": {"/v1/denied", 503, "application/json", good, false},
	} {
		r, err := http.NewRequest(http.MethodGet, "http://x"+tc.path, nil)
		must(t, err)
		err = c.check(r, &http.Response{StatusCode: tc.status, Header: http.Header{"Content-Type": {tc.kind}}}, []byte(tc.body))
		if (err == nil) != tc.ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The document's own rules, as its linters have them: a server, and tags that are
// explained (by hand: npx @redocly/cli lint, npx @stoplight/spectral-cli lint).
func TestDocument(t *testing.T) {
	c := newContract(t, startSite(t, admintest.Stopped{}).Get("/v1/openapi.json"))
	if servers, _ := c.doc["servers"].([]any); len(servers) != 1 {
		t.Errorf("servers: %v", servers)
	}
	explained := map[string]bool{}
	for _, tag := range c.doc["tags"].([]any) {
		tag := tag.(map[string]any)
		explained[tag["name"].(string)] = tag["description"] != ""
	}
	used := map[string]bool{}
	for path, item := range c.doc["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			for _, tag := range op.(map[string]any)["tags"].([]any) {
				used[tag.(string)] = true
				if !explained[tag.(string)] {
					t.Errorf("%s %s: nothing says what %s is", method, path, tag)
				}
			}
		}
	}
	if len(used) != len(explained) {
		t.Errorf("tags %v are explained, %v used", explained, used)
	}
}

// checked makes requests and holds every response against the contract.
type checked struct {
	*admintest.Site
	contract *contract
}

func (c *checked) do(path string, status int) []byte {
	c.T.Helper()
	return c.ask(http.MethodGet, path, "", status)
}

// ask makes a request with a body.
func (c *checked) ask(method, path, body string, status int) []byte {
	c.T.Helper()
	r := c.Request(method, path)
	if body != "" {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		r.Header.Set("Content-Type", "application/json")
	}
	resp, answer := c.Do(r)
	if resp.StatusCode != status {
		c.T.Errorf("%s %s: %s, want %d\n%s", method, path, resp.Status, status, answer)
	}
	if err := c.contract.check(r, resp, answer); err != nil {
		c.T.Error(err)
	}
	return answer
}

// each makes a request for every operation, in the order of the document.
func (c *checked) each(f func(method, path string)) {
	c.T.Helper()
	for _, op := range c.contract.operations() {
		method, path, _ := strings.Cut(op, " ")
		f(method, strings.NewReplacer("{name}", "c1", "{job}", "report", "{address}", "fd00::1", "{pointer}", "fd00::1", "{id}", strings.Repeat("a", 32), "{slot}", "16").Replace(path))
	}
}

// TestContract asks a rack that works for everything, rightly and wrongly, and holds
// each real answer against the OpenAPI document. No operation may be left out.
func TestContract(t *testing.T) {
	b := admintest.StartBusy(t)
	s := startSite(t, b.Gatekeeper())
	c := &checked{s, newContract(t, s.Get("/v1/openapi.json"))}
	call := admintest.GetAs[api.List[api.Call]](s, "/v1/calls").Items[0].ID
	for path, status := range map[string]int{
		"/v1/status": 200, "/v1/counters": 200, "/v1/denied": 200, "/v1/stopped": 200,
		"/v1/machines": 200, "/v1/blades": 200, "/v1/blades/m1": 200, "/v1/blades/m9": 404,
		"/v1/nodes": 200, "/v1/nodes/" + b.Caller.Address().String(): 200, "/v1/nodes/fd00::9": 404, "/v1/nodes/c1": 422,
		"/v1/services": 200, "/v1/services/Arrays": 200, "/v1/services/None": 404,
		"/v1/regions": 200, "/v1/regions?limit=2": 200, "/v1/regions?pointer=" + b.A.String(): 200, "/v1/regions?node=fd00::9": 200,
		"/v1/regions?limit=0": 422, "/v1/regions?limit=1001": 422, "/v1/regions?limit=x": 422, "/v1/regions?pointer=x": 422,
		"/v1/regions?cursor=x": 400, "/v1/regions?size=9": 422,
		"/v1/calls": 200, "/v1/calls?node=fd00::9": 200, "/v1/calls?limit=1": 200, "/v1/calls?finished=true": 422, "/v1/calls?cursor=x": 400,
		"/v1/calls/" + call + "/chain": 200, "/v1/calls/" + strings.Repeat("0", 31) + "1/chain": 404,
		"/v1/nodes/" + b.Callee.Address().String() + "/calls": 200, "/v1/nodes/fd00::9/calls": 404,
		"/v1/pointers/" + b.A.String(): 200, "/v1/pointers/fd00::9": 404, "/v1/pointers/m1": 422,
		"/v1/blades/s2/domain": 200, "/v1/blades/m1/domain": 200, "/v1/blades/m9/domain": 404,
		"/v1/timelines": 200, "/v1/graph": 200, "/v1/graph?by=node&limit=2&within=60&node=fd00::9&service=S": 200, "/v1/graph?by=x": 422, "/v1/nodes?limit=2&match=x&cursor=y": 200, "/v1/blades?limit=2000": 422, "/v1/methods?service=S&limit=1": 200, "/v1/policies?service=S": 200, "/v1/names": 200, "/v1/timelines?service=Arrays&method=addRef&code=ok&rerun=true&longer=0.5&since=2026-01-01T00:00:00Z&until=2026-02-01T00:00:00.5Z&caller=fd00::9": 200, "/v1/timelines?code=none": 400, "/v1/timelines?since=yesterday": 422, "/v1/events/recent?blade=m1&node=fd00::9&service=S&app=shop/arrays": 200, "/v1/history": 200, "/v1/timelines?cursor=f": 200, "/v1/methods": 200, "/v1/timelines?failed=true&roots=true&limit=2": 200, "/v1/timelines?node=fd00::9": 200, "/v1/timelines?cursor=x": 400, "/v1/timelines?failed=x": 422,
		"/v1/calls/" + call + "/timeline": 200, "/v1/calls/" + strings.Repeat("0", 31) + "1/timeline": 404, "/v1/calls/x/timeline": 422,
		"/v1/calls/" + call: 200, "/v1/calls/" + strings.Repeat("0", 31) + "1": 404, "/v1/calls/x": 422,
		"/v1/rules": 200, "/v1/rules?table=control_rule": 200, "/v1/rules?table=none": 404, "/v1/rules?cursor=!": 400,
		"/v1/events/recent": 200, "/v1/events/recent?kind=access.denied&limit=2": 200, "/v1/events/recent?limit=-1": 422,
		"/v1/events?replay=x": 422,
		"/v1/slots":           200, "/v1/slots?node=fd00::9": 200, "/v1/slots?cursor=x": 400, "/v1/slots?limit=0": 422,
	} {
		c.do(path, status)
	}
	c.leases(b)
	b.Deny(3) // there are events
	c.events()
	b.Broken.Store(true)
	c.actions(call, b.A.String())
	c.forgets()
	c.frees()
	c.job()
	for _, op := range c.contract.operations() {
		if !c.contract.used[op+" 200"] {
			t.Errorf("nobody has tried %s", op)
		}
	}
	c.Token = ""
	c.each(func(method, path string) { c.ask(method, path, "", http.StatusUnauthorized) })
}

// noState is the state of a service that has none to speak of.
type noState struct{}

func (noState) Snapshot() ([]byte, error) { return nil, nil }
func (noState) Restore([]byte) error      { return nil }

// forgets forgets a node, on a rack of its own: its program was started by hand, kept a state and has ended.
func (c *checked) forgets() {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	c.T.Cleanup(cancel)
	rack, err := simrack.Start(ctx, simrack.Config{Heartbeat: time.Minute})
	must(c.T, err)
	c.T.Cleanup(func() { must(c.T, rack.Close()) })
	up := make(chan error, 1)
	_, err = rack.Run("s1", "counter", func(ctx context.Context, j join.Joiner, _ control.Start) error {
		n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("counter"))
		if err == nil {
			err = n.Export(ctx, "Counter", arrays.NewPingProcessor(service.Ping{}), rpc.WithState(noState{}))
		}
		up <- err
		<-ctx.Done()
		return err
	})
	must(c.T, err)
	must(c.T, <-up)
	must(c.T, rack.Kill("s1", "counter"))
	small := &checked{startSite(c.T, rack.Gatekeeper()), c.contract}
	var nodes api.List[api.Node]
	for len(nodes.Items) != 1 || nodes.Items[0].Awaited == nil {
		must(c.T, ctx.Err())
		nodes = api.List[api.Node]{}
		must(c.T, json.Unmarshal(small.do("/v1/nodes", http.StatusOK), &nodes))
	}
	small.ask(http.MethodDelete, "/v1/nodes/"+nodes.Items[0].Address.String(), "", http.StatusOK)
}

// frees frees a frozen region, on a rack of its own: the switch has lost its registers, and the region's node did not say what its rights were.
func (c *checked) frees() {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	c.T.Cleanup(cancel)
	rack, err := simrack.Start(ctx, simrack.Config{})
	must(c.T, err)
	c.T.Cleanup(func() { must(c.T, rack.Close()) })
	j, err := rack.Joiner("c1")
	must(c.T, err)
	n, err := rpc.Join(join.NewContext(ctx, simrack.Silent{Joiner: j}), rpc.WithName("silent"))
	must(c.T, err)
	p, err := n.Memory().Alloc(ctx, 64)
	must(c.T, err)
	must(c.T, rack.LoseSwitch())
	must(c.T, rack.BootSwitch())
	<-n.Done()
	small := &checked{startSite(c.T, rack.Gatekeeper()), c.contract}
	var held api.Holders
	must(c.T, json.Unmarshal(small.do("/v1/pointers/"+p.String(), http.StatusOK), &held))
	if !held.Region.Frozen {
		c.T.Errorf("whose region it was nobody can say, and it is %+v", held.Region)
	}
	small.ask(http.MethodDelete, "/v1/pointers/"+p.String(), "", http.StatusOK)
}

const oneProgram = `{"programs":[{"name":"arrays","args":["arrays","server"],"nodes":1,"policy":"recover","services":[{"name":"More","methods":[{"name":"m","policy":"none"}]}]}]}`

// leases has an operator end a standing lease, and no other slot.
func (c *checked) leases(b *admintest.Busy) {
	c.T.Helper()
	if _, err := rpc.RefOf([]byte("shared")).Share(b.Ctx, b.Nested, b.Caller.Address()); err != nil {
		c.T.Fatal(err)
	}
	all := admintest.GetAs[api.List[api.Slot]](c.Site, "/v1/slots?kind=lease").Items
	if len(all) != 1 {
		c.T.Fatalf("standing leases: %+v", all)
	}
	for slot, status := range map[string]int{strconv.Itoa(int(all[0].Slot)): 200, "1": 404, "x": 422} {
		c.ask("POST", "/v1/slots/"+slot+"/cancel", "", status)
	}
}

// actions does everything to the rack, rightly and wrongly.
func (c *checked) actions(call, pointer string) {
	c.T.Helper()
	for _, a := range []struct {
		method, path, body string
		status             int
	}{
		{"DELETE", "/v1/pointers/" + pointer, "", 400}, {"DELETE", "/v1/pointers/0:0:1001:0:77::", "", 404}, {"DELETE", "/v1/pointers/x", "", 422},
		{"POST", "/v1/blades/c1/drain", `{"cause":"new fans"}`, 200}, {"POST", "/v1/blades/c1/drain", "", 200},
		{"POST", "/v1/blades/m9/drain", "", 404}, {"POST", "/v1/blades/c1/drain", `{"cause":1}`, 422},
		{"POST", "/v1/blades/c1/drain", `{"because":"x"}`, 422}, {"POST", "/v1/blades/c1/drain", `{`, 400},
		{"POST", "/v1/blades/c1/drain", `{"cause":"` + strings.Repeat("x", 300) + `"}`, 422},
		{"POST", "/v1/blades/c1/drain", `{"cause":"` + strings.Repeat("x", 128<<10) + `"}`, 413},
		{"POST", "/v1/blades/c1/return", "", 200}, {"POST", "/v1/blades/m9/return", "", 404},
		{"POST", "/v1/blades/m2/unmirror", `{"cause":"a test"}`, 200}, {"POST", "/v1/blades/m1/unmirror", "", 400}, {"POST", "/v1/blades/m9/unmirror", "", 404},
		{"POST", "/v1/blades/m1/mirror", `{"onto":"m1"}`, 400}, {"POST", "/v1/blades/m1/mirror", `{"onto":"c1"}`, 404}, {"POST", "/v1/blades/m1/mirror", `{}`, 422},
		{"POST", "/v1/blades/m1/mirror", "", 400}, {"POST", "/v1/blades/m1/mirror", `{"onto":"m2"}`, 200},
		{"POST", "/v1/blades/m3/fail", `{"cause":"it smells"}`, 200}, {"POST", "/v1/blades/m3/drain", "", 409},
		{"POST", "/v1/blades/m9/fail", "", 404}, {"POST", "/v1/blades/m3/return", "", 200},
		{"POST", "/v1/backup", "", 200}, {"POST", "/v1/reconcile", "", 200}, {"POST", "/v1/calls/" + call + "/cancel", "", 200}, {"POST", "/v1/calls/" + strings.Repeat("0", 32) + "/cancel", "", 404}, {"POST", "/v1/calls/x/cancel", "", 422},
		{"DELETE", "/v1/nodes/fd00:b1f0:0:2::1", "", 400}, {"DELETE", "/v1/nodes/fd00::9", "", 404}, {"DELETE", "/v1/nodes/x", "", 422},
		{"GET", "/v1/policies", "", 200}, {"PUT", "/v1/policies/Arrays/addRef", `{"policy":"tainted"}`, 200}, {"PUT", "/v1/policies/Arrays", `{"policy":"none"}`, 200},
		{"PUT", "/v1/policies/Arrays/addRef", `{"policy":"often"}`, 422}, {"PUT", "/v1/policies/Arrays/addRef", `{"policy":""}`, 422}, {"PUT", "/v1/policies/Arrays", `{}`, 400}, {"PUT", "/v1/policies/Arrays/addRef", `{"max_failures":3}`, 200}, {"PUT", "/v1/policies/Arrays/addRef", `{"max_failures":-1}`, 422},
		{"GET", "/v1/policies", "", 200}, {"DELETE", "/v1/policies/Arrays/addRef", "", 200}, {"DELETE", "/v1/policies/Arrays", "", 200}, {"DELETE", "/v1/policies/Nobody", "", 200},
		{"PUT", "/v1/apps/shop", oneProgram, 200}, {"GET", "/v1/apps", "", 200}, {"GET", "/v1/apps/shop", "", 200},
		{"GET", "/v1/logs?program=shop/arrays&last=5", "", 200}, {"GET", "/v1/logs?program=shop&since=2026-01-02T03:04:05Z", "", 200}, {"GET", "/v1/logs?program=shup", "", 404},
		{"GET", "/v1/logs?cursor=x", "", 400}, {"GET", "/v1/logs?last=5&cursor=1", "", 400}, {"GET", "/v1/logs?since=x", "", 422}, {"GET", "/v1/logs?last=1001", "", 422},
		{"PUT", "/v1/apps/shop", strings.Replace(oneProgram, `"services"`, `"job":true,"services"`, 1), 400},
		{"POST", "/v1/apps/shop/rollback", "", 404}, {"PUT", "/v1/apps/shop", strings.Replace(oneProgram, `"server"`, `"client"`, 1), 200}, {"POST", "/v1/apps/none/rollback", "", 404},
		{"PUT", "/v1/apps/idle", strings.Replace(oneProgram, `"nodes":1`, `"nodes":0`, 1), 200}, {"PUT", "/v1/apps/idle", strings.NewReplacer(`"nodes":1`, `"nodes":0`, `"server"`, `"other"`).Replace(oneProgram), 200},
		{"POST", "/v1/apps/idle/rollback", "", 200}, {"DELETE", "/v1/apps/idle", "", 200},
		{"PUT", "/v1/apps/shop", `{"programs":[]}`, 422}, {"PUT", "/v1/apps/shop", "", 400}, {"PUT", "/v1/apps/shop", `{"programs":[{}]}`, 422},
		{"PUT", "/v1/apps/s%20p", oneProgram, 400}, {"PUT", "/v1/apps/big", strings.Replace(oneProgram, `"nodes":1`, `"nodes":200`, 1), 409},
		{"POST", "/v1/apps/shop/restart", "", 200}, {"POST", "/v1/apps/none/restart", "", 404},
		{"POST", "/v1/apps/none/jobs/report/run", `{"args":["-x"]}`, 404}, {"POST", "/v1/apps/shop/jobs/arrays/run", "", 400},
		{"DELETE", "/v1/apps/shop", "", 200}, {"DELETE", "/v1/apps/none", "", 404}, {"GET", "/v1/apps/none", "", 404},
	} {
		c.ask(a.method, a.path, a.body, a.status)
	}
}

// job runs a job twice.
func (c *checked) job() {
	c.T.Helper()
	c.ask("PUT", "/v1/apps/job", `{"programs":[{"name":"report","args":["report"],"nodes":1,"job":true}]}`, http.StatusOK)
	for !strings.Contains(string(c.Get("/v1/apps/job")), `"finished"`) { // until the test's time is over
		runtime.Gosched()
	}
	c.ask("POST", "/v1/apps/job/jobs/report/run", `{"args":["--month","5"]}`, http.StatusOK)
}

// events holds the events of a stream against the document.
func (c *checked) events() {
	c.T.Helper()
	r := c.Request(http.MethodGet, "/v1/events?replay=3", "Last-Event-ID", "0-0")
	resp, err := c.Client.Do(r)
	must(c.T, err)
	defer resp.Body.Close()
	seen := 0
	for lines := bufio.NewScanner(resp.Body); seen < 3 && lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || strings.HasPrefix(data, `{"missed"`) { // the gap before everything: another boot
			continue
		}
		seen++
		if err := c.contract.validate("/components/schemas/Event", []byte(data)); err != nil {
			c.T.Errorf("%v\n%s", err, data)
		}
	}
	if seen < 3 {
		c.T.Errorf("%d events", seen)
	}
	c.contract.used["GET /v1/events 200"] = true
}

// When the Gatekeeper has ended, every answer says so as the document has it.
func TestContract_Stopped(t *testing.T) {
	s := startSite(t, admintest.Stopped{})
	c := &checked{s, newContract(t, s.Get("/v1/openapi.json"))}
	c.each(func(method, path string) {
		body := ""
		switch {
		case method == http.MethodPut && strings.HasPrefix(path, "/v1/policies"):
			body = `{"policy":"none"}`
		case strings.HasSuffix(path, "/mirror"):
			body = `{"onto":"m2"}`
		case method == http.MethodPut:
			body = oneProgram
		}
		if !strings.HasPrefix(path, "/v1/events") { // what was told can still be told
			c.ask(method, path, body, http.StatusServiceUnavailable)
		}
	})
}
