package checks

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/ingress"
	"github.com/bifrost-rack/bifrost/rpc"
)

// manyTypes is an IDL with types of every kind, of a service with the Counter's methods.
const manyTypes = `enum Size { SMALL = 1, LARGE = 3 }
struct Point { 1: i32 x, 2: i32 y }
union Payment { 1: string card, 2: i64 cents }
/** All that somebody orders. */
struct Order {
  1: i64 number, 2: list<Point> points, 3: map<string, i64> notes, 4: set<Size> sizes, 5: Payment payment, 6: map<Point, list<i16>> grid,
  7: bool gift, 8: i8 priority, 9: map<Size, double> prices, 10: optional Order parent, 11: optional binary photo, 12: optional uuid id
}
exception SoldOut { 1: string item, 2: i32 left }
service Many {
  Order add(1: Order order, 2: optional double price) throws (1: SoldOut soldOut)
  void totals()
}`

// startIngress serves an ingress of a rack that has the Counter, and one that says it has the methods of manyTypes.
func startIngress(t *testing.T) (url string) {
	t.Helper()
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{})
	must(t, err)
	t.Cleanup(func() { must(t, rack.Close()) })
	var nodes []*rpc.Node
	for blade, name := range map[string]string{"c1": "ingress", "s1": "counter", "s2": "many"} {
		n, err := rpc.Join(rack.On(ctx, blade), rpc.WithName(name))
		must(t, err)
		t.Cleanup(func() { must(t, n.Close(ctx)) })
		nodes = append(nodes, n)
	}
	node := func(name string) *rpc.Node {
		return nodes[slices.IndexFunc(nodes, func(n *rpc.Node) bool { return n.Name() == name })]
	}
	must(t, tally.Serve(ctx, node("counter"), tally.CounterName))
	must(t, counter.ExportCounter(ctx, node("many"), "Many.of-them", &tally.Counter{}, rpc.WithIDL(manyTypes)))
	s, err := ingress.New(ctx, node("ingress"), ingress.Config{})
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	serving, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- s.Serve(serving, l) }()
	t.Cleanup(func() { stop(); must(t, <-served) })
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return "http://" + l.Addr().String()
}

// TestIngressDocument: the ingress' description of services is OpenAPI 3.1 by that standard's own schema. Requests that it allows are
// answered, with what it describes; others it does not allow.
func TestIngressDocument(t *testing.T) {
	url := startIngress(t)
	resp, err := http.Get(url + "/openapi.json")
	must(t, err)
	document, err := io.ReadAll(resp.Body)
	must(t, err)
	resp.Body.Close()
	doc, err := libopenapi.NewDocument(document)
	must(t, err)
	v, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if valid, errs := v.ValidateDocument(); !valid {
		b, _ := json.Marshal(errs)
		t.Fatalf("%s\n%s", b, document)
	}
	const good = `{"order":{"number":"9007199254740993","points":[{"x":1,"y":2}],"notes":{"a":1},"sizes":["LARGE"],"payment":{"cents":5},"grid":[[{"x":1,"y":-2},[1]]],` +
		`"gift":true,"priority":-128,"prices":{"SMALL":"NaN"}}}`
	for _, c := range []struct {
		method, body string
		allowed      bool
		status       int
	}{
		{"Counter/add", `{"account":1,"amounts":"AQI="}`, true, 200},
		{"Counter/add", `{"account":99,"amounts":"AQI="}`, true, 422},
		{"Counter/add", `{"account":2147483648,"amounts":"AQI="}`, false, 400},
		{"Counter/add", `{"account":1}`, false, 400},
		{"Counter/add", `{"account":1,"amounts":"AQI=","more":1}`, false, 400},
		{"Counter/totals", `{}`, true, 200},
		{"Many.of-them/add", good, true, 0},
		{"Many.of-them/add", strings.Replace(good, `{"cents":5}`, `{"cents":5,"card":""}`, 1), false, 400},
		{"Many.of-them/add", strings.Replace(good, `"LARGE"`, `"HUGE"`, 1), false, 400},
		{"Many.of-them/add", strings.Replace(good, `"gift":true`, `"gift":1`, 1), false, 400},
	} {
		req, err := http.NewRequest(http.MethodPost, url+"/call/"+c.method, strings.NewReader(c.body))
		must(t, err)
		req.Header.Set("Content-Type", "application/json")
		allowed, errs := v.ValidateHttpRequest(req)
		if allowed != c.allowed {
			t.Errorf("%s %s: the document allows it: %t; %v", c.method, c.body, allowed, errs)
		}
		if c.status == 0 {
			continue // its service has other types than it says
		}
		req.Body = io.NopCloser(strings.NewReader(c.body))
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		answer, err := io.ReadAll(resp.Body)
		must(t, err)
		resp.Body.Close()
		resp.Body = io.NopCloser(bytes.NewReader(answer))
		if resp.StatusCode != c.status {
			t.Errorf("%s %s: %s %s", c.method, c.body, resp.Status, answer)
		}
		if ok, errs := v.ValidateHttpResponse(req, resp); !ok {
			t.Errorf("%s %s: %s is not what the document says: %v", c.method, c.body, answer, errs[0])
		}
	}
}
