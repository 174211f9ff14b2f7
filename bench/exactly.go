package bench

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/bench/agent"
	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
	"github.com/bifrost-rack/bifrost/bench/topology"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/p4switch/shared/metrics"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

var exactlyOnce = Experiment{
	Experiment: report.Experiment{
		Name: "exactly-once", Question: "What does exactly-once cost?",
		Method: "The same calls with policy none (at most once) and with policy recover, where every outcome is in " +
			"its callee's ledger before others see it; and a chain of four nested calls by value, on two blades in turn. Logs and ledgers are in memory, so no disk is measured.",
		X: report.Axis{Title: "call", Scale: report.Category}, Y: report.Axis{Title: "latency, median", Unit: "µs", Scale: report.Linear},
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		err := contest{
			peers: []string{"udp", "bifrost", "bifrost-exact"},
			points: []point{
				{x: report.ExactPing, label: "ping", work: peer.Work{Op: peer.Ping}},
				{x: 1, label: "increment 1 KiB", work: peer.Work{Op: peer.Increment, Size: 1 << 10}},
				{x: report.ExactWrite, label: "add 64 KiB", work: peer.Work{Op: peer.Add, Size: 64 << 10}},
			},
			unable: func(p peer.Peer, at point) bool { return p.Name == "udp" && at.work.Op != peer.Ping },
		}.run(ctx, l, e)
		if err != nil {
			return err
		}
		return contest{
			peers: []string{"thrift-udp", "thrift-udp-exact"}, servers: []string{serverBlade, otherBlade}, chain: true,
			points: []point{{x: report.ExactChain, label: "chain of 4", work: peer.Work{Op: peer.Chain, Size: 8, Hops: 4}}},
		}.run(ctx, l, e)
	},
}

// exactWork counts what an exactly-once call costs those whom all calls of a rack share.
var exactWork = Experiment{
	Experiment: report.Experiment{
		Name: "exactly-once-work", Question: "What does an exactly-once call cost the switch, the Gatekeeper and memory servers?",
		Method: "Callers of one process ping, exactly once and without pointers, a server node each; all servers are on one blade. Packets, requests and CPU time are what the " +
			"components count themselves, while the calls last, divided by the number of calls. Memory machines have one copy.",
		X: report.Axis{Title: "server nodes", Scale: report.Log},
		Y: report.Axis{Title: "for each call", Unit: "packets, requests, µs", Scale: report.Linear},
	},
	NoRack: true,
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		return l.onOwn(ctx, l.unmirrored(), func(l *Lab, n *topology.Namespaces) error {
			w := works{Lab: l, n: n}
			for _, nodes := range []int{1, 2, 4, report.MostServers} {
				if l.Pace.Fewer && nodes > 1 && nodes < report.MostServers {
					continue
				}
				l.Progress("%s: %d server nodes", e.Name, nodes)
				if err := w.measure(ctx, nodes, e); err != nil {
					return err
				}
			}
			return nil
		})
	},
}

// works counts the work of a rack's components.
type works struct {
	*Lab
	n *topology.Namespaces
}

// work is what the components have done so far.
type work struct{ packets, held, requests, gatekeeper, sw, memory float64 }

// measure has as many callers ping as many server nodes.
func (w *works) measure(ctx context.Context, nodes int, e *report.Experiment) error {
	p, err := peer.Find("thrift-udp-exact")
	if err != nil {
		return err
	}
	at, err := w.Address(serverBlade)
	if err != nil {
		return err
	}
	pair := &pair{peer: p}
	defer pair.close()
	site := peer.NewSite(p.Name, false, slices.Repeat([]netip.Addr{at}, nodes)...)
	site.Nodes = nodes
	for site.Index = range nodes {
		server, err := w.start("a server", serverBlade)
		if err != nil {
			return err
		}
		pair.servers = append(pair.servers, server)
		if _, err := server.Ask(ctx, agent.Request{Serve: &agent.Role{Peer: p.Name, Site: site}}); err != nil {
			return err
		}
	}
	site.Index = 0
	if pair.client, err = w.start("the client", clientBlade); err != nil {
		return err
	}
	if _, err := pair.client.Ask(ctx, agent.Request{Dial: &agent.Role{Peer: p.Name, Site: site}}); err != nil {
		return err
	}
	return w.count(ctx, pair, agent.Measure{Work: peer.Work{Op: peer.Ping}, Callers: nodes}, report.Point{X: float64(nodes)}, e)
}

// count measures calls, and adds at a point what the components have done for each. It begins when the slots of regions that are freed, which
// rest for a second, have come back: before that, a caller asks for ever more of them. It goes on for long, since CPU times are counted in hundredths
// of a second, and to be asked for them costs the Gatekeeper several.
func (w *works) count(ctx context.Context, pair *pair, ask agent.Measure, at report.Point, e *report.Experiment) error {
	const warmup, measure = 50, 50 // times those of one point of a contest
	e.Repeats, e.WarmupSeconds, e.MeasureSeconds = 1, warmup*w.Pace.Warmup.Seconds(), measure*w.Pace.Measure.Seconds()
	ask.For = warmup * w.Pace.Warmup
	if _, err := pair.client.Ask(ctx, agent.Request{Measure: &ask}); err != nil {
		return err
	}
	before, err := w.counters(ctx)
	if err != nil {
		return err
	}
	ask.For = measure * w.Pace.Measure
	done, err := pair.client.Ask(ctx, agent.Request{Measure: &ask})
	if err != nil {
		return err
	}
	after, err := w.counters(ctx)
	if err != nil {
		return err
	}
	const micro = 1e6
	calls := float64(done.Result.N)
	for _, s := range []struct {
		name, title string
		value       float64
	}{
		{report.SwitchPackets, "packets into the switch", after.packets - before.packets},
		{report.HeldPackets, "packets held for the Gatekeeper", after.held - before.held},
		{report.MemoryRequests, "requests to memory servers", after.requests - before.requests},
		{report.GatekeeperCPU, "CPU of the Gatekeeper, µs", micro * (after.gatekeeper - before.gatekeeper)},
		{report.SwitchCPU, "CPU of the switch's process, µs", micro * (after.sw - before.sw)},
		{report.MemoryCPU, "CPU of memory servers, µs", micro * (after.memory - before.memory)},
	} {
		at.Value = s.value / calls
		at.Low, at.High = at.Value, at.Value
		e.Add(s.name, s.title, at)
	}
	return nil
}

// counters reads the components' counters.
func (w *works) counters(ctx context.Context) (c work, err error) {
	dir := filepath.Dir(w.n.Host.AdminSocket(w.n.Config.Name))
	sum := func(m map[string]float64, name, label string) (n float64) {
		for key, v := range m {
			if strings.HasPrefix(key, name+"{") && strings.Contains(key, label) {
				n += v
			}
		}
		return n
	}
	gatekeeper, err := metrics.Read(ctx, w.n.Host.AdminSocket(w.n.Config.Name))
	if err != nil {
		return c, err
	}
	c.held, c.gatekeeper = gatekeeper["bifrost_gatekeeper_held_packets_total"], gatekeeper[cpuMetric]
	sw, err := metrics.Read(ctx, plan.MetricsPath(dir, plan.Switch))
	if err != nil {
		return c, err
	}
	c.sw = sw[cpuMetric]
	c.packets = sum(sw, "bifrost_switch_port_packets_total", `direction="in"`)
	for _, b := range w.n.Config.Blades {
		if b.Kind != control.Memory {
			continue
		}
		m, err := metrics.Read(ctx, plan.MetricsPath(dir, b.Name))
		if err != nil {
			return c, err
		}
		c.requests += sum(m, "bifrost_memory_requests_total", "operation=")
		c.memory += m[cpuMetric]
	}
	if gatekeeper[cpuMetric] == 0 || c.packets == 0 {
		return c, fmt.Errorf("the rack %s counts nothing", w.n.Config.Name)
	}
	return c, nil
}

// cpuMetric is the CPU time of a process in seconds.
const cpuMetric = "process_cpu_seconds_total"
