package admin

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/packaging"
)

// The metrics follow Prometheus's conventions, and say what the API says.
func TestMetrics(t *testing.T) {
	b := startBusy(t)
	s := startSite(t, b.Gatekeeper())
	s.Get("/v1/status")
	problems, err := testutil.GatherAndLint(s.server.registry)
	must(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	must(t, testutil.GatherAndCompare(s.server.registry, strings.NewReader(`
# HELP bifrost_gatekeeper_denied_accesses_total Memory accesses that the switch has denied.
# TYPE bifrost_gatekeeper_denied_accesses_total counter
bifrost_gatekeeper_denied_accesses_total 3
# HELP bifrost_gatekeeper_regions Regions that are allocated.
# TYPE bifrost_gatekeeper_regions gauge
bifrost_gatekeeper_regions 3
# HELP bifrost_gatekeeper_switch_connected Whether the switch obeys, its tables as they should be.
# TYPE bifrost_gatekeeper_switch_connected gauge
bifrost_gatekeeper_switch_connected 1
# HELP bifrost_gatekeeper_memory_capacity_bytes What memory blades have.
# TYPE bifrost_gatekeeper_memory_capacity_bytes gauge
bifrost_gatekeeper_memory_capacity_bytes{blade="m1"} 2.68435456e+08
bifrost_gatekeeper_memory_capacity_bytes{blade="m2"} 2.68435456e+08
bifrost_gatekeeper_memory_capacity_bytes{blade="m3"} 2.68435456e+08
# HELP bifrost_gatekeeper_memory_machine_copies Complete copies of a memory machine that are in service; without one its regions are unavailable.
# TYPE bifrost_gatekeeper_memory_machine_copies gauge
bifrost_gatekeeper_memory_machine_copies{machine="1"} 2
bifrost_gatekeeper_memory_machine_copies{machine="2"} 1
`), namespace+"_memory_machine_copies", namespace+"_denied_accesses_total", namespace+"_regions", namespace+"_switch_connected", namespace+"_memory_capacity_bytes"))
	if text := string(s.Get("/metrics")); !strings.Contains(text, "\n"+namespace+"_up 1\n") || !strings.Contains(text, "\ngo_goroutines ") {
		t.Errorf("/metrics:\n%s", text)
	}
}

// Calls are counted by method and code, and the histogram names a call for who asks for
// OpenMetrics.
func TestMetrics_Methods(t *testing.T) {
	b := startBusy(t)
	s := startSite(t, b.Gatekeeper())
	open := namespace + `_open_calls{method="incrementRef",service="Inner"} 1`
	if text := string(s.Get("/metrics")); !strings.Contains(text, open) {
		t.Errorf("no %s", open)
	}
	b.Over()
	r := s.Request(http.MethodGet, "/metrics")
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	_, body := s.Do(r)
	text := string(body)
	for _, want := range []string{
		namespace + `_ended_calls_total{code="ok",method="addRef",service="Arrays"} 1`, namespace + `_open_calls{method="addRef",service="Arrays"} 0`,
		namespace + `_call_duration_seconds_count{method="incrementRef",service="Inner"} 1`, `# {trace_id="`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
}

// ledgerRack is a Gatekeeper whose memory blades have reported what ledgers take.
type ledgerRack struct{ stopped }

func (ledgerRack) Overview(context.Context) (o gatekeeper.Overview, err error) {
	o.Blades = []gatekeeper.BladeState{
		{Name: "m1", Kind: control.Memory, Ledgers: &control.LedgerSpace{Used: 512, Total: 1 << 30, Space: 64 << 20, Count: 1, Refused: 2}},
		{Name: "m2", Kind: control.Memory}, // has not reported yet
	}
	return o, nil
}

// The space for ledgers is in the metrics and in the API.
func TestMetrics_Ledgers(t *testing.T) {
	s := startSite(t, ledgerRack{})
	must(t, testutil.GatherAndCompare(s.server.registry, strings.NewReader(`
# HELP bifrost_gatekeeper_ledger_capacity_bytes What memory blades have for ledgers.
# TYPE bifrost_gatekeeper_ledger_capacity_bytes gauge
bifrost_gatekeeper_ledger_capacity_bytes{blade="m1"} 1.073741824e+09
# HELP bifrost_gatekeeper_ledger_used_bytes What of it is taken, as they last reported.
# TYPE bifrost_gatekeeper_ledger_used_bytes gauge
bifrost_gatekeeper_ledger_used_bytes{blade="m1"} 512
# HELP bifrost_gatekeeper_ledger_refused_total Requests and commands about ledgers that a memory blade has refused since it began.
# TYPE bifrost_gatekeeper_ledger_refused_total counter
bifrost_gatekeeper_ledger_refused_total{blade="m1"} 2
`), namespace+"_ledger_capacity_bytes", namespace+"_ledger_used_bytes", namespace+"_ledger_refused_total"))
	if blades := string(s.Get("/v1/blades")); strings.Count(blades, `"ledgers":{"used":512,"total":1073741824,"space":67108864,"count":1,"refused":2}`) != 1 {
		t.Errorf("blades: %s", blades)
	}
}

// portRack is a Gatekeeper whose switch has stopped packets of a port.
type portRack struct{ stopped }

func (portRack) Overview(context.Context) (o gatekeeper.Overview, err error) {
	o.Switch = true
	return o, nil
}

func (portRack) Drops(context.Context) ([]gatekeeper.PortDrops, error) {
	return []gatekeeper.PortDrops{{
		Port: 3, Blade: "c1", Denied: 1, Dropped: map[string]uint64{"no identity": 2, "forged": 3},
		Throttled: map[string]uint64{"call": 4}, Refused: map[string]uint64{"foreign": 5},
	}}, nil
}

// What was stopped of a port is in the metrics and in the API, by why.
func TestMetrics_Ports(t *testing.T) {
	s := startSite(t, portRack{})
	text := string(s.Get("/metrics"))
	for _, want := range []string{
		`_denied_port_accesses_total{blade="c1",port="3"} 1`, `_switch_dropped_packets_total{blade="c1",port="3",reason="no identity"} 2`,
		`_switch_dropped_packets_total{blade="c1",port="3",reason="forged"} 3`, `_throttled_packets_total{blade="c1",port="3",reason="call"} 4`,
		`_refused_port_packets_total{blade="c1",port="3",reason="foreign"} 5`,
	} {
		if !strings.Contains(text, "\n"+namespace+want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	const want = `{"port":3,"blade":"c1","denied":1,"dropped":{"forged":3,"no identity":2},"throttled":{"call":4},"refused":{"foreign":5}}`
	if got := string(s.Get("/v1/stopped")); !strings.Contains(got, want) {
		t.Errorf("stopped: %s", got)
	}
}

// Alerts and dashboard ask for metrics that exist.
func TestMetrics_Monitoring(t *testing.T) {
	b := startBusy(t)
	s := startSite(t, b.Gatekeeper())
	b.Over() // so that calls have ended
	text := string(s.Get("/metrics"))
	used, err := packaging.Metrics(namespace + "_")
	must(t, err)
	if len(used) < 20 {
		t.Errorf("they use only %q", used)
	}
	for _, name := range used {
		if !strings.Contains(text, "\n# TYPE "+strings.TrimSuffix(name, "_bucket")+" ") {
			t.Errorf("there is no metric %s", name)
		}
	}
}

// A Gatekeeper that has ended is down; that is a measurement, not an error.
func TestMetrics_Down(t *testing.T) {
	s := startSite(t, stopped{})
	text := string(s.Get("/metrics"))
	if !strings.Contains(text, "\n"+namespace+"_up 0\n") || strings.Contains(text, namespace+"_nodes") {
		t.Errorf("/metrics:\n%s", text)
	}
}

// Whatever paths are asked for, the labels are routes.
func TestMetrics_BoundedLabels(t *testing.T) {
	s := startSite(t, stopped{})
	for _, path := range []string{"/v1/blades/a", "/v1/blades/b", "/v1/nodes/::1", "/x", "/y", "/v1/z"} {
		s.Do(s.Request(http.MethodGet, path))
	}
	s.Do(s.Request("BREW", "/v1/status"))
	families, err := s.server.registry.Gather()
	must(t, err)
	routes := map[string]bool{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "route" {
					routes[l.GetValue()] = true
				}
			}
		}
	}
	if got := slices.Sorted(maps.Keys(routes)); !slices.Equal(got, []string{"/v1/blades/{name}", "/v1/nodes/{address}", "other"}) {
		t.Errorf("routes %q", got)
	}
}
