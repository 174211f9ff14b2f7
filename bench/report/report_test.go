package report

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

func s(name string, xy ...float64) Series {
	series := Series{Name: name, Title: name}
	for i := 0; i+1 < len(xy); i += 2 {
		series.Points = append(series.Points, Point{X: xy[i], Value: xy[i+1], Low: xy[i+1], High: xy[i+1] * 1.5})
	}
	return series
}

// bar is a labelled point.
type bar struct {
	label string
	value float64
}

func labelled(name string, bars ...bar) Series {
	series := Series{Name: name, Title: name}
	for _, b := range bars {
		series.Points = append(series.Points, Point{Label: b.label, Value: b.value, Low: b.value, High: b.value})
	}
	return series
}

// sample is a report with one number for everything.
func sample() *Report {
	const k64, m2 = 64 << 10, 2 << 20
	return &Report{
		Schema: Schema, Started: time.Date(2026, 11, 21, 4, 10, 0, 0, time.UTC), Seconds: 400, Versions: map[string]string{"go": "go1.26"},
		Machine:  Machine{CPU: "a CPU", CPUs: 4, Memory: 8 << 30, Kernel: "6.1", OS: "Debian", Virtual: "a hypervisor"},
		Topology: Topology{Kind: "namespaces", Switch: "bifrost", MTU: 65535, Protected: true, Blades: []string{"c1", "s1"}},
		Pinned:   map[string][]int{"client": {3}}, Peers: map[string]string{"raw UDP": "plainly"},
		Experiments: []Experiment{
			{Name: "ping-overhead", Question: "Ping?", Figures: "7.4", X: Axis{Title: "call", Scale: Category}, Y: Axis{Unit: "µs"}, LoadBefore: 2, LoadAfter: 3, Repeats: 3,
				Series: []Series{s("udp", 0, 10), s("udp-spin", 0, 6), s("tcp", 0, 12), s("thrift-udp", 0, 12), s("bifrost-exact", 0, 100), s("thrift-framed", 0, 30), s("thrift-buffered", 0, 24)}},
			{Name: "increment-array", Question: "Increment?", Y: Axis{Unit: "µs"}, Notes: []string{"something was missing."},
				Series: []Series{s("tcp", 1, 10, k64, 20, m2, 100), s("bifrost", 1, 100, k64, 120, m2, 500), s("thrift-framed", 1, 10, k64, 60, m2, 1000), s("thrift-buffered", 1, 11, k64, 70, m2, 900)}},
			{Name: "where-time-goes", X: Axis{Scale: Parts}, Series: []Series{
				labelled(Rights, bar{"increment\nBifröst, by regions", 75}), labelled("DSM", bar{"increment\nBifröst, by regions", 15}),
				labelled("network", bar{"increment\nBifröst, by regions", 10})}},
			{Name: "by-region", Series: []Series{s("bifrost-regions", 64, 12, k64, 20, m2, 100, ByRegionChain, 30), s("bifrost-unjudged", 64, 10, k64, 19, m2, 80),
				s("bifrost-regions-exact", k64, 40), s("thrift-framed", ByRegionChain, 100), s("thrift-buffered", ByRegionChain, 150)}},
			{Name: "by-region-rate", Series: []Series{s("bifrost-regions", GatekeeperThere, 10, GatekeeperDead, 9, GatekeeperBack, 10)}},
			{Name: "by-region-work", Series: []Series{s(HeldPackets, WorkExact, 0.5), s(GatekeeperCPU, WorkExact, 2), s(SwitchCPU, WorkExact, 30)}},
			{Name: "exactly-once", Series: []Series{s("bifrost", ExactWrite, 100), s("bifrost-exact", ExactWrite, 1000)}},
			{Name: "memory-or-redis", Series: []Series{s("bifrost-read", 4<<10, 14, m2, 50), s("redis-read", 4<<10, 70), s("tcp-read", m2, 100), s("bifrost-write", m2, 100), s("tcp-write", m2, 120)}},
			{Name: "mirrored-memory", Series: []Series{s("memory-single-write", 4<<10, 10, m2, 100), s("memory-mirrored-write", 4<<10, 20, m2, 300), s("redis-replica-write", 4<<10, 100),
				s("memory-single-read", 4<<10, 10), s("memory-mirrored-read", 4<<10, 10)}},
			{Name: "memory-blade-dies", Series: []Series{s("noticed", 0, 0.5, 1, 2, 2, 900, 3, 0.5, 4, 3, 5, 31_000, 6, 9, 7, 12)}},
			{Name: "long-values", Series: []Series{s("tcp", 1<<30, 100), s("thrift-udp", 1<<30, 400)}},
			{Name: "switch-round-trip", Series: []Series{labelled("udp", bar{"Bifröst, eBPF", 20}, bar{"Open vSwitch", 40}, bar{"bmv2", 640})}},
		},
	}
}

func TestFindings(t *testing.T) {
	got := map[string]Finding{}
	for _, f := range sample().Findings() {
		got[f.Measure] = f
	}
	for _, tc := range []struct {
		measure string
		value   float64
		reached bool
	}{
		{"ping, policy none / raw UDP", 1.2, true},
		{"ping, policy none / raw UDP that spins, too", 2, false},
		{"ping, exactly once / raw UDP", 10, false},
		{"increment array by reference / raw TCP, mean over sizes", (10. + 6 + 5) / 3, false},
		{"increment array by reference / the faster Thrift TCP, mean from 64 KiB on", (2 + 500./900) / 2, false},
		{"by region / the same transfers while no rights are judged, 64 B", 1.2, false},
		{"by region / the same transfers while no rights are judged, 64 KiB", 20. / 19, true},
		{"by region / the same transfers while no rights are judged, 1 MiB", math.NaN(), false},
		{"by region, exactly once / with policy none, 64 KiB", 2, false},
		{"by region: 1 MiB through 4 calls / the faster Thrift TCP by value", 0.3, false},
		{"by region, 64 callers: calls a second while the Gatekeeper is dead / while it is there", 0.9, false},
		{"by region, 64 KiB: packets held for a call, exactly once", 0.5, false},
		{"by region, 64 KiB: CPU of the Gatekeeper for a call, exactly once, µs", 2, true},
		{"by region, 64 KiB: CPU of the switch's process for a call, exactly once, µs", 30, false},
		{"read of 4 KiB / Redis GET", 0.2, true},
		{"write of 4 KiB to two copies / to one", 2, true},
		{"write of 2 MiB to two copies / to one", 3, false},
		{"write of 4 KiB to two copies / Redis with one replica, WAIT 1", 0.2, true},
		{"read of 4 KiB with two copies / with one", 1, true},
		{"death of a memory blade to first right answer, ms (detected after 500 to 750)", 900, false},
		{"read of 4 KiB while 1 GiB is filled / usual, 99 %", 1.5, true},
		{"read of 4 KiB, quiet: p99 / median", 4, false},
		{"read of 4 KiB while 1 GiB is filled: p99 / median", 6, false},
		{"1 GiB there and back by value / raw TCP", 4, false},
		{"filling of 1 GiB under load, ms", 31_000, false},
		{"bandwidth of a 2 MiB read / TCP on the same path", 2, true},
		{"bandwidth of a 2 MiB write / TCP on the same path", 1.2, false},
		{"add arrays by reference / raw TCP, mean over sizes", math.NaN(), false}, // not measured
		{"ping throughput, 64 callers / gRPC-Go", math.NaN(), false},
	} {
		f, ok := got[tc.measure]
		same := math.Abs(f.Value-tc.value) < 1e-9 || math.IsNaN(f.Value) && math.IsNaN(tc.value)
		if !ok || !same || f.Reached() != tc.reached || f.Measured() == math.IsNaN(tc.value) {
			t.Errorf("%s: %+v, reached %v", tc.measure, f, f.Reached())
		}
	}
	empty := &Report{}
	for _, f := range append(empty.Findings(), empty.Comparisons()...) {
		if f.Measured() || empty.Why(f) != "" {
			t.Errorf("of nothing: %+v", f)
		}
	}
}

func TestComparisons(t *testing.T) {
	want := []float64{0.5, 16, 2, 1.2, 0.5}
	for i, f := range sample().Comparisons()[:len(want)] {
		if math.Abs(f.Value-want[i]) > 1e-9 {
			t.Errorf("%s: %g, want %g", f.Measure, f.Value, want[i])
		}
	}
}

// Every aim that is missed has a reason, with the numbers of the breakdown.
func TestWhy(t *testing.T) {
	r := sample()
	for _, f := range r.Findings() {
		why := r.Why(f)
		if missed := f.Measured() && !f.Reached(); missed != (why != "") {
			t.Errorf("%s, reached %v: %q", f.Measure, f.Reached(), why)
		}
		if strings.HasPrefix(f.Measure, "increment array by reference / raw TCP") && !strings.Contains(why, "15 % of 100 µs are reads and writes of memory") {
			t.Error(why)
		}
		if strings.HasPrefix(f.Measure, "exactly once: 64 KiB") && !strings.Contains(why, "through regions") {
			t.Error(why)
		}
	}
}

func TestDocument(t *testing.T) {
	var b bytes.Buffer
	if err := WriteDocument(&b, sample(), func(name string) string { return "eval/" + name + ".svg" }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Run on 2026-11-21 04:10 UTC, 400 seconds: a CPU, 4 CPUs, 8 GiB, under a hypervisor; Linux 6.1, Debian.",
		"| ping, policy none / raw UDP | 3.78 (no protection on) | at most 1.5 | 1.20 | yes |",
		"| ping, exactly once / raw UDP | not built | at most 3 | 10.0 | no |",
		"| ping throughput, 64 callers / gRPC-Go | – | at least 1 | not measured | – |",
		"- *ping, exactly once / raw UDP* (10.0, at most 3): ",
		"![ping-overhead](eval/ping-overhead.svg)", "the thesis's figure 7.4", "*The thesis:* Bifröst's ping took 3.78 times",
		"| call | udp | udp-spin | tcp |", "load 2.0 to 3.0", "Note: something was missing.", "| raw UDP | plainly |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the document lacks %q", want)
		}
	}
	if strings.Contains(b.String(), "NaN") || strings.Contains(b.String(), "%!") {
		t.Error(b.String())
	}
	if err := WriteDocument(full{}, sample(), func(string) string { return "" }); !errors.Is(err, errFull) {
		t.Errorf("a full disk: %v", err)
	}
}

var errFull = errors.New("no space left")

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestTables(t *testing.T) {
	var b bytes.Buffer
	if err := WriteTables(&b, sample()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"increment-array: Increment?", "64Ki", "2Mi", "note: something was missing.", "load 2.0 to 3.0"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the tables lack %q:\n%s", want, b.String())
		}
	}
	if err := WriteTables(full{}, sample()); err == nil {
		t.Error("a full disk")
	}
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	if err := WriteJSON(&b, sample()); err != nil {
		t.Fatal(err)
	}
	got, err := ReadJSON(bytes.NewReader(b.Bytes()))
	if err != nil || !reflect.DeepEqual(got, sample()) {
		t.Errorf("%v: %+v", err, got)
	}
	for _, bad := range []string{"", "{}", `{"schema": 99}`, "[]"} {
		if _, err := ReadJSON(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// FuzzReadJSON: what is read makes a document, whatever its numbers are.
func FuzzReadJSON(f *testing.F) {
	var b bytes.Buffer
	if err := WriteJSON(&b, sample()); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(`{"schema":1,"experiments":[{"series":[{"points":[{"x":-1}]}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ReadJSON(bytes.NewReader(b))
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := errors.Join(WriteDocument(&out, r, func(string) string { return "" }), WriteTables(&out, r)); err != nil {
			t.Error(err)
		}
		out.Reset()
		if err := WriteJSON(&out, r); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		again, err := ReadJSON(strings.NewReader(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		out.Reset()
		if err := WriteJSON(&out, again); err != nil || out.String() != text {
			t.Errorf("%s\nhas become\n%s, %v", text, &out, err)
		}
	})
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0.00", 1.234: "1.23", 12.34: "12.3", 1234: "1234"} {
		if got := number(v); got != want {
			t.Errorf("%g: %s", v, got)
		}
	}
	for v, want := range map[float64]string{1: "1", 1000: "1000", 1024: "1Ki", 1.5 * 1024: "1536", 2 << 20: "2Mi"} {
		if got := Size(v); got != want {
			t.Errorf("%g: %s", v, got)
		}
	}
}
