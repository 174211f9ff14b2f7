package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/bench/stats"
)

// Finding is a ratio that the run has come to, beside the thesis's and the aim.
type Finding struct {
	Measure string `json:"measure"`
	// Thesis is what the thesis reports, as text: it compares with other things.
	Thesis string `json:"thesis"`
	// Aim is the ratio to reach; 0 if there is none. More says that it is to be
	// reached from above.
	Aim  float64 `json:"aim,omitempty"`
	More bool    `json:"more,omitempty"`
	// Value is the ratio; NaN, and absent in JSON, if it was not measured.
	Value float64 `json:"-"`
}

// Measured is whether the run has come to a value.
func (f Finding) Measured() bool { return !math.IsNaN(f.Value) && !math.IsInf(f.Value, 0) }

// Reached is whether the aim is.
func (f Finding) Reached() bool {
	if f.More {
		return f.Measured() && f.Value >= f.Aim
	}
	return f.Measured() && f.Value <= f.Aim
}

// Findings are the measures that have an aim, in the order of the issue.
func (r *Report) Findings() []Finding {
	ping, inc, add := r.Experiment("ping-overhead"), r.Experiment("increment-array"), r.Experiment("add-arrays")
	memory, chain, callers := r.Experiment("memory-or-redis"), r.Experiment("call-chain"), r.Experiment("concurrent-callers")
	copies, death := r.Experiment("mirrored-memory"), r.Experiment("memory-blade-dies")
	exact, work := r.Experiment("exactly-once"), r.Experiment("exactly-once-work")
	region, regionRate, regionWork := r.Experiment("by-region"), r.Experiment("by-region-rate"), r.Experiment("by-region-work")
	const large, page, one, two, short = 64 << 10, 4 << 10, 1 << 20, 2 << 20, 16 << 10
	return []Finding{
		{Measure: "ping, policy none / raw UDP", Thesis: "3.78 (no protection on)", Aim: 1.5, Value: ping.ratioOf("thrift-udp", "udp")},
		{Measure: "ping, policy none / raw UDP that spins, too", Thesis: "–", Aim: 1.5, Value: ping.ratioOf("thrift-udp", "udp-spin")},
		{Measure: "ping, exactly once / raw UDP", Thesis: "not built", Aim: 3, Value: ping.ratioOf("bifrost-exact", "udp")},
		{Measure: "increment array by reference / raw TCP, mean over sizes", Thesis: "28 (raw UDP)", Aim: 1, Value: inc.meanRatio("bifrost", "tcp", 0)},
		{Measure: "add arrays by reference / raw TCP, mean over sizes", Thesis: "41 (raw UDP)", Aim: 1, Value: add.meanRatio("bifrost", "tcp", 0)},
		{Measure: "increment array by reference up to 16 KiB / raw TCP, mean over sizes", Thesis: "–", Aim: 0.5, Value: inc.meanRatioUpTo("bifrost", "tcp", short)},
		{Measure: "add arrays by reference up to 16 KiB / raw TCP, mean over sizes", Thesis: "–", Aim: 0.5, Value: add.meanRatioUpTo("bifrost", "tcp", short)},
		{Measure: "increment array by value from 64 KiB on / the faster Thrift TCP, mean over sizes", Thesis: "–", Aim: 0.7, Value: inc.meanRatio("thrift-udp", fasterThrift, large)},
		{Measure: "add arrays by value from 64 KiB on / the faster Thrift TCP, mean over sizes", Thesis: "–", Aim: 0.7, Value: add.meanRatio("thrift-udp", fasterThrift, large)},
		{Measure: "increment array by reference, regions kept / raw TCP, mean over sizes", Thesis: "–", Aim: 3, Value: inc.meanRatio("bifrost-kept", "tcp", 0)},
		{Measure: "add arrays by reference, regions kept / raw TCP, mean over sizes", Thesis: "–", Aim: 3, Value: add.meanRatio("bifrost-kept", "tcp", 0)},
		{Measure: "increment array by reference / the faster Thrift TCP, mean from 64 KiB on", Thesis: "1.3 to 1.9", Aim: 0.8, Value: inc.meanRatio("bifrost", fasterThrift, large)},
		{Measure: "add arrays by reference / the faster Thrift TCP, mean from 64 KiB on", Thesis: "1.3 to 1.9", Aim: 0.8, Value: add.meanRatio("bifrost", fasterThrift, large)},
		{Measure: "rpc.Ref / the better of always by value and always by region, mean over patterns and sizes", Thesis: "–", Aim: 1.1, Value: stats.Mean(r.chosen())},
		{Measure: "rpc.Ref / the better of both, the worst pattern and size", Thesis: "–", Aim: 1.1, Value: worst(r.chosen())},
		{Measure: "1 GiB there and back by value / raw TCP", Thesis: "–", Aim: 3, Value: r.Experiment("long-values").ratioAt("thrift-udp", "tcp", 1<<30)},
		{Measure: "one of 100 posts of 10 KiB read in place / the list by value", Thesis: "–", Aim: 0.05, Value: r.Experiment("posts").value("ref-chosen", PostsOne) / r.Experiment("posts").value("ref-chosen", PostsList)},
		{Measure: "by region / the same transfers while no rights are judged, 64 B", Thesis: "–", Aim: 1.1, Value: region.ratioAt("bifrost-regions", "bifrost-unjudged", 64)},
		{Measure: "by region / the same transfers while no rights are judged, 64 KiB", Thesis: "–", Aim: 1.1, Value: region.ratioAt("bifrost-regions", "bifrost-unjudged", large)},
		{Measure: "by region / the same transfers while no rights are judged, 1 MiB", Thesis: "–", Aim: 1.1, Value: region.ratioAt("bifrost-regions", "bifrost-unjudged", one)},
		{Measure: "by region / the same transfers while no rights are judged, 2 MiB", Thesis: "–", Aim: 1.1, Value: region.ratioAt("bifrost-regions", "bifrost-unjudged", two)},
		{Measure: "by region, exactly once / with policy none, 64 KiB", Thesis: "–", Aim: 1.3, Value: region.ratioAt("bifrost-regions-exact", "bifrost-regions", large)},
		{Measure: "by region: 1 MiB through 4 calls / the faster Thrift TCP by value", Thesis: "–", Aim: 0.25, Value: region.ratioAt("bifrost-regions", fasterThrift, ByRegionChain)},
		{Measure: "by region, 64 callers: calls a second while the Gatekeeper is dead / while it is there", Thesis: "–", Aim: 0.95, More: true, Value: regionRate.ratioAtX("bifrost-regions", GatekeeperDead, GatekeeperThere)},
		{Measure: "by region, exactly once, 64 callers: calls a second while the Gatekeeper is dead / while it is there", Thesis: "–", Aim: 0.95, More: true, Value: regionRate.ratioAtX("bifrost-regions-exact", GatekeeperDead, GatekeeperThere)},
		{Measure: "by region, 64 KiB: packets held for a call, exactly once", Thesis: "–", Aim: 0.01, Value: regionWork.value(HeldPackets, WorkExact)},
		{Measure: "by region, 64 KiB: CPU of the Gatekeeper for a call, exactly once, µs", Thesis: "–", Aim: 3, Value: regionWork.value(GatekeeperCPU, WorkExact)},
		{Measure: "by region, 64 KiB: CPU of the switch's process for a call, exactly once, µs", Thesis: "–", Aim: 20, Value: regionWork.value(SwitchCPU, WorkExact)},
		{Measure: "1 MiB through 4 chained calls, by reference / the faster Thrift TCP by value", Thesis: "–", Aim: 0.4, Value: chain.ratioAt("bifrost", fasterThrift, 4)},
		{Measure: "read of 4 KiB / Redis GET", Thesis: "–", Aim: 0.7, Value: memory.ratioAt("bifrost-read", "redis-read", page)},
		{Measure: "read of 4 KiB, quiet: p99 / median", Thesis: "–", Aim: 2, Value: death.value("noticed", 1) / death.value("noticed", 0)},
		{Measure: "read of 4 KiB while 1 GiB is filled: p99 / median", Thesis: "–", Aim: 4, Value: death.value("noticed", 4) / death.value("noticed", 3)},
		{Measure: "bandwidth of a 2 MiB read / TCP on the same path", Thesis: "–", Aim: 1.5, More: true, Value: memory.ratioAt("tcp-read", "bifrost-read", two)},
		{Measure: "bandwidth of a 2 MiB write / TCP on the same path", Thesis: "–", Aim: 1.5, More: true, Value: memory.ratioAt("tcp-write", "bifrost-write", two)},
		{Measure: "write of 4 KiB to two copies / to one", Thesis: "–", Aim: 2.2, Value: copies.ratioAt("memory-mirrored-write", "memory-single-write", page)},
		{Measure: "write of 2 MiB to two copies / to one", Thesis: "–", Aim: 2.2, Value: copies.ratioAt("memory-mirrored-write", "memory-single-write", two)},
		{Measure: "write of 4 KiB to two copies / Redis with one replica, WAIT 1", Thesis: "–", Aim: 0.3, Value: copies.ratioAt("memory-mirrored-write", "redis-replica-write", page)},
		{Measure: "write of 2 MiB to two copies / Redis with one replica, WAIT 1", Thesis: "–", Aim: 0.3, Value: copies.ratioAt("memory-mirrored-write", "redis-replica-write", two)},
		{Measure: "read of 4 KiB with two copies / with one", Thesis: "–", Aim: 1.05, Value: copies.ratioAt("memory-mirrored-read", "memory-single-read", page)},
		{Measure: "death of a memory blade to first right answer, ms (detected after 500 to 750)", Thesis: "–", Aim: 770, Value: death.value("noticed", 2)},
		{Measure: "detection of a memory blade's death to first right answer, ms", Thesis: "–", Aim: 20, Value: death.value("noticed", 6)},
		{Measure: "death of a memory daemon to first right answer, ms", Thesis: "–", Aim: 20, Value: death.value("noticed", 7)},
		{Measure: "read of 4 KiB while 1 GiB is filled / usual, 99 %", Thesis: "–", Aim: 2, Value: death.value("noticed", 4) / death.value("noticed", 1)},
		{Measure: "filling of 1 GiB under load, ms", Thesis: "–", Aim: 30_000, Value: death.value("noticed", 5)},
		{Measure: "ping throughput, 64 callers / gRPC-Go", Thesis: "–", Aim: 1, More: true, Value: callers.ratioAt("thrift-udp", "grpc", 64)},
		{Measure: "exactly once: ping / the same with policy none", Thesis: "not built", Aim: 3, Value: exact.ratioAt("bifrost-exact", "bifrost", ExactPing)},
		{Measure: "exactly once: ping / raw UDP", Thesis: "not built", Aim: 0.5, Value: exact.ratioAt("bifrost-exact", "udp", ExactPing)},
		{Measure: "exactly once: p99 of a ping with policy none / p99 of raw UDP", Thesis: "–", Aim: 1, Value: exact.p99OfPing("bifrost") / exact.p99OfPing("udp")},
		{Measure: "exactly once: p99 of a ping / p99 of raw UDP", Thesis: "–", Aim: 2, Value: exact.p99OfPing("bifrost-exact") / exact.p99OfPing("udp")},
		{Measure: "exactly once: 4 nested calls / 4 with policy none", Thesis: "–", Aim: 4, Value: exact.ratioAt("thrift-udp-exact", "thrift-udp", ExactChain)},
		{Measure: "exactly once: 64 KiB written by the handler / the same with policy none", Thesis: "–", Aim: 1.3, Value: exact.ratioAt("bifrost-exact", "bifrost", ExactWrite)},
		{Measure: "exactly once: packets at the switch for a call, 16 server nodes / 1", Thesis: "–", Aim: 1.2, Value: work.value(SwitchPackets, MostServers) / work.value(SwitchPackets, 1)},
		{Measure: "exactly once: requests to memory servers for a call, 16 server nodes / 1", Thesis: "–", Aim: 1.2, Value: work.value(MemoryRequests, MostServers) / work.value(MemoryRequests, 1)},
		{Measure: "exactly once: packets held for a call, 16 server nodes", Thesis: "–", Aim: 0.1, Value: work.value(HeldPackets, MostServers)},
		{Measure: "exactly once: CPU of the Gatekeeper for a call, 16 server nodes, µs", Thesis: "–", Aim: 3, Value: work.value(GatekeeperCPU, MostServers)},
	}
}

// The points of the experiment "exactly-once" that findings are about.
const (
	ExactPing  = 0
	ExactWrite = 2
	ExactChain = 3
)

// Points of the experiments "by-region", beside sizes in bytes, "by-region-rate" and "by-region-work".
const (
	ByRegionChain = 4

	GatekeeperThere = 0
	GatekeeperDead  = 1
	GatekeeperBack  = 2

	WorkNone  = 0
	WorkExact = 1
)

// The series of the experiments "exactly-once-work" and "by-region-work", and how many nodes serve at most.
const (
	SwitchPackets  = "switch-packets"
	HeldPackets    = "held-packets"
	MemoryRequests = "memory-requests"
	GatekeeperCPU  = "gatekeeper-cpu"
	SwitchCPU      = "switch-cpu"
	MemoryCPU      = "memory-cpu"
	MostServers    = 16
)

// What the points of experiment posts are.
const (
	PostsList = 0 // the list by value
	PostsOne  = 1 // one of its posts, in place
)

// chosen are the ratios of what rpc.Ref chooses to the better of both ways, at each pattern and size.
func (r *Report) chosen() (ratios []float64) {
	for i := range r.Experiments {
		e := &r.Experiments[i]
		if !strings.HasPrefix(e.Name, "patterns-") {
			continue
		}
		for _, p := range e.series("ref-chosen").Points {
			if better := least(e.value("ref-value", p.X), e.value("ref-region", p.X)); !math.IsNaN(better) {
				ratios = append(ratios, p.Value/better)
			}
		}
	}
	return ratios
}

// worst is the largest ratio; NaN if there is none.
func worst(ratios []float64) float64 {
	if len(ratios) == 0 {
		return math.NaN()
	}
	return slices.Max(ratios)
}

// p99OfPing is that of a contender's latency, NaN if it was not measured.
func (e *Experiment) p99OfPing(name string) float64 {
	if p, ok := e.series(name).at(ExactPing); ok && p.Detail != nil {
		return p.Detail.P99
	}
	return math.NaN()
}

// Comparisons are the thesis's other numbers, and this run's.
func (r *Report) Comparisons() []Finding {
	sw, ping, sizes := r.Experiment("switch-round-trip"), r.Experiment("ping-overhead"), r.Experiment("udp-or-tcp")
	inc, add := r.Experiment("increment-array"), r.Experiment("add-arrays")
	return []Finding{
		{Measure: "7.3: P4 switch / Open vSwitch, UDP round trip", Thesis: "16 (bmv2)", Value: labelRatio(sw, "Bifröst, eBPF", "Open vSwitch")},
		{Measure: "7.3: bmv2 / Open vSwitch, UDP round trip", Thesis: "16", Value: labelRatio(sw, "bmv2", "Open vSwitch")},
		{Measure: "7.4: Thrift's ping over TCP / raw TCP", Thesis: "3.09", Value: ping.ratioOf(fasterThrift, "tcp")},
		{Measure: "7.4: Bifröst's ping / raw UDP", Thesis: "3.78", Value: ping.ratioOf("thrift-udp", "udp")},
		{Measure: "7.5: Thrift's ping over our UDP / over TCP", Thesis: "1.46 (54 µs / 37 µs)", Value: ping.ratioOf("thrift-udp", fasterThrift)},
		{Measure: "7.5: Thrift over our UDP / over TCP, arrays up to 16 KiB, mean", Thesis: "–", Value: sizes.meanRatioUpTo("thrift-udp", fasterThrift, 16<<10)},
		{Measure: "7.6: increment array, Thrift over TCP / raw TCP, mean over sizes", Thesis: "21 (with Nagle's algorithm)", Value: inc.meanRatio(fasterThrift, "tcp", 0)},
		{Measure: "7.7: add arrays, Thrift over TCP / raw TCP, mean over sizes", Thesis: "22 (with Nagle's algorithm)", Value: add.meanRatio(fasterThrift, "tcp", 0)},
	}
}

// fasterThrift stands for the faster one of Thrift's transports at each point.
const fasterThrift = "thrift-framed|thrift-buffered"

// value is a series' value at x; NaN if it was not measured.
func (e *Experiment) value(name string, x float64) float64 {
	if name == fasterThrift {
		return least(e.value("thrift-framed", x), e.value("thrift-buffered", x))
	}
	if p, ok := e.series(name).at(x); ok {
		return p.Value
	}
	return math.NaN()
}

// least returns the lesser value that is one.
func least(a, b float64) float64 {
	switch {
	case math.IsNaN(a):
		return b
	case math.IsNaN(b):
		return a
	}
	return min(a, b)
}

func (e *Experiment) ratioAt(name, of string, x float64) float64 {
	return e.value(name, x) / e.value(of, x)
}

// ratioAtX is the ratio of a series' values at two points.
func (e *Experiment) ratioAtX(name string, x, of float64) float64 {
	return e.value(name, x) / e.value(name, of)
}

// ratioOf is for experiments of one point.
func (e *Experiment) ratioOf(name, of string) float64 { return e.ratioAt(name, of, 0) }

// meanRatio is the mean of the ratios at all sizes from least on that both have.
func (e *Experiment) meanRatio(name, of string, least float64) float64 {
	return e.meanOf(name, of, func(x float64) bool { return x >= least })
}

func (e *Experiment) meanRatioUpTo(name, of string, most float64) float64 {
	return e.meanOf(name, of, func(x float64) bool { return x <= most })
}

func (e *Experiment) meanOf(name, of string, counts func(x float64) bool) float64 {
	var ratios []float64
	for _, p := range e.series(name).Points {
		if r := e.ratioAt(name, of, p.X); counts(p.X) && !math.IsNaN(r) {
			ratios = append(ratios, r)
		}
	}
	if name == fasterThrift {
		for _, p := range e.series(of).Points {
			if r := e.ratioAt(name, of, p.X); counts(p.X) && !math.IsNaN(r) {
				ratios = append(ratios, r)
			}
		}
	}
	return stats.Mean(ratios)
}

// labelRatio is the ratio of two labels of an experiment's first series.
func labelRatio(e *Experiment, label, of string) float64 {
	if e == nil || len(e.Series) == 0 {
		return math.NaN()
	}
	a, ok := e.Series[0].labelled(label)
	b, also := e.Series[0].labelled(of)
	if !ok || !also {
		return math.NaN()
	}
	return a.Value / b.Value
}

// text writes a ratio.
func (f Finding) text() string {
	if !f.Measured() {
		return "not measured"
	}
	return number(f.Value)
}

// aim writes what is to be reached.
func (f Finding) aim() string {
	if f.More {
		return fmt.Sprintf("at least %g", f.Aim)
	}
	return fmt.Sprintf("at most %g", f.Aim)
}
