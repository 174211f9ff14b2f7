package admin

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/p4switch/shared/metrics"
)

const namespace = "bifrost_gatekeeper"

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

var (
	descUp        = describe("up", "Whether the Gatekeeper's loop answers; if not, only this is there.")
	descConnected = describe("switch_connected", "Whether the switch obeys, its tables as they should be.")
	descLoop      = describe("loop_delay_seconds", "How long the Gatekeeper's loop took to answer this scrape.")
	descBlades    = describe("blades", "Blades, by kind and status.", "kind", "status")
	descNodes     = describe("nodes", "Nodes that have joined.")
	descServices  = describe("services", "Services that at least one node exports.")
	descRegions   = describe("regions", "Regions that are allocated.")
	descCalls     = describe("calls", "Calls that have been under way for 20 ms, as their callees have told last.")
	descRecorded  = describe("recorded_calls", "Calls with open slots in the switch.")
	descCapacity  = describe("memory_capacity_bytes", "What memory blades have.", "blade")
	descUsed      = describe("memory_used_bytes", "What of it is taken, as they last reported.", "blade")
	descLedgerMax = describe("ledger_capacity_bytes", "What memory blades have for ledgers.", "blade")
	descLedgers   = describe("ledger_used_bytes", "What of it is taken, as they last reported.", "blade")
	descLedgerNo  = describe("ledger_refused_total", "Requests and commands about ledgers that a memory blade has refused since it began.", "blade")
	descCopies    = describe("memory_machine_copies", "Complete copies of a memory machine that are in service; without one its regions are unavailable.", "machine")
	descLeases    = describe("standing_leases", "Standing leases, by how far they have come: coming, granted, ending, resting (a second), ended (their owners have not let go of them).", "state")
	descLogBytes  = describe("log_bytes", "Bytes of the records on the log.")
	descLogMax    = describe("log_capacity_bytes", "Bytes of records that the log takes; there is no log if it is 0.")
	descLogged    = describe("log_records", "Records on the log.")
	descFull      = describe("full_states", "Nodes whose states and checkpoints have more than eight tenths of what these may have in a ledger.")
	descFallen    = describe("recovering_nodes", "Nodes that have failed, and are not back or cleaned up after yet.")
	descApps      = describe("apps", "Deployments, by whether somebody has to look after them: stuck (programs fail again and again, and there is nothing to go back to), rolled back (what was deployed last has failed), blocked (a program needs help, such as room), well.", "state")
	descThrottled = describe("throttled_packets_total", "Packets that the switch dropped because their port had more held than its rate, by why they would have been held.", "port", "blade", "reason")
	descPortDrop  = describe("switch_dropped_packets_total", "Packets of a port that the switch has dropped, by why: no identity, no route, malformed, forged, unsupported, hop limit, unlisted TCP, late.", "port", "blade", "reason")
	descPortRefus = describe("refused_port_packets_total", "Held packets of a port that the Gatekeeper has refused.", "port", "blade", "reason")
	descPortDeny  = describe("denied_port_accesses_total", "Memory accesses of a port that the switch has denied.", "port", "blade")
	descEnded     = describe("ended_calls_total", "Calls that have ended, by the code of their answer; ok is none. Their callees count them.", "service", "method", "code")
	descTook      = describe("call_duration_seconds", "How long calls took, as their callees tell; of many in a short time, some.", "service", "method")
	descOpen      = describe("open_calls", "Calls that have been under way for 20 ms.", "service", "method")
	descDropped   = describe("dropped_packets_total", "Held packets that went nowhere.", "reason")
)

// counters are those that are numbers and nothing else.
var counters = []struct {
	desc  *prometheus.Desc
	value func(c *gatekeeper.Counters) uint64
}{
	{describe("held_packets_total", "Packets that the switch has held."), func(c *gatekeeper.Counters) uint64 { return c.Held }},
	{describe("reclaimed_regions_total", "Regions freed because nobody had them."), func(c *gatekeeper.Counters) uint64 { return c.Reclaims }},
	{describe("written_rules_total", "Table entries inserted, modified or deleted."), func(c *gatekeeper.Counters) uint64 { return c.RulesWritten }},
	{describe("reconciled_rules_total", "Table entries repaired after the switch was read back."), func(c *gatekeeper.Counters) uint64 { return c.Reconciled }},
	{describe("denied_accesses_total", "Memory accesses that the switch has denied."), func(c *gatekeeper.Counters) uint64 { return c.Denied }},
	{describe("refused_requests_total", "Requests of daemons and programs refused by the Gatekeeper."), func(c *gatekeeper.Counters) uint64 { return c.Refused }},
	{describe("given_up_calls_total", "Exactly-once calls given up because their programs have ended too often while they executed them."), func(c *gatekeeper.Counters) uint64 { return c.GivenUp }},
	{describe("deadlocked_calls_total", "Calls refused because they would have waited for themselves."), func(c *gatekeeper.Counters) uint64 { return c.Deadlocks }},
	{describe("failures_total", "Rules or commands refused by the switch or a blade."), func(c *gatekeeper.Counters) uint64 { return c.Failures }},
	{describe("logged_records_total", "Records put on the log."), func(c *gatekeeper.Counters) uint64 { return c.Logged }},
	{describe("deaf_total", "Times in which no blade could be heard: the way from the switch was stalled, or the Gatekeeper did not run."), func(c *gatekeeper.Counters) uint64 { return c.Deaf }},
	{describe("memory_copies_lost_total", "Copies of memory machines that had two and have one."), func(c *gatekeeper.Counters) uint64 { return c.CopiesLost }},
}

// dropped are the reasons for which held packets went nowhere.
var dropped = []struct {
	reason string
	value  func(c *gatekeeper.Counters) uint64
}{
	{"malformed", func(c *gatekeeper.Counters) uint64 { return c.Malformed }},
	{"foreign", func(c *gatekeeper.Counters) uint64 { return c.Foreign }},
	{"unsent", func(c *gatekeeper.Counters) uint64 { return c.Unsent }},
}

// newMetrics makes the server's own registry.
func (s *Server) newMetrics() {
	s.registry = prometheus.NewRegistry()
	s.traffic = newTraffic(s.registry)
	s.registry.MustRegister(metrics.OfProcess()...)
	s.registry.MustRegister(
		rackCollector{s.backend},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: "build_info", Help: "The program.", ConstLabels: prometheus.Labels{"version": s.version},
		}, func() float64 { return 1 }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: "event_streams", Help: "Readers of events.",
		}, func() float64 { return float64(len(s.streams)) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: namespace, Name: "lost_events_total", Help: "Events that the admin API was too slow for.",
		}, s.hub.lostEvents),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: namespace, Name: "history_missed_total", Help: "Calls and events that are missing in the history: more in a second than is kept of one, or its files cannot be written.",
		}, func() float64 { return float64(s.history.State().Missed) }),
	)
}

// metricsHandler serves /metrics. Gathering cannot fail: what has no answer from
// the Gatekeeper is left out.
func (s *Server) metricsHandler() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, EnableOpenMetrics: true})
}

// rackCollector asks the Gatekeeper at every scrape.
type rackCollector struct{ backend Backend }

// Describe and Collect are prometheus.Collector's.
func (c rackCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descUp, descConnected, descLoop, descBlades, descNodes, descServices, descRegions, descCalls, descRecorded, descCapacity, descUsed, descLedgerMax, descLedgers, descLedgerNo,
		descCopies, descLogBytes, descLogMax, descLogged, descFull, descFallen, descApps, descEnded, descTook, descOpen, descDropped, descThrottled, descPortDrop, descPortDeny,
	} {
		out <- d
	}
	for _, k := range counters {
		out <- k.desc
	}
}

// Collect measures.
func (c rackCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), backendTimeout)
	defer cancel()
	start := time.Now()
	o, err := c.backend.Overview(ctx)
	delay := time.Since(start)
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descUp, number(err == nil))
	if err != nil {
		return
	}
	gauge(descLoop, delay.Seconds())
	gauge(descConnected, number(o.Switch))
	gauge(descNodes, float64(len(present(o.Nodes))))
	gauge(descServices, float64(len(o.Services)))
	gauge(descRegions, float64(o.RegionCount))
	gauge(descCalls, float64(o.CallsUnderWay))
	gauge(descRecorded, float64(o.CallCount))
	for _, state := range gatekeeper.LeaseStates() {
		gauge(descLeases, float64(o.Leases[state]), state)
	}
	gauge(descLogBytes, float64(o.LogBytes))
	gauge(descLogMax, float64(o.LogLimit))
	gauge(descLogged, float64(o.LogRecords))
	gauge(descFull, float64(countsOf(&o).FullStates))
	gauge(descFallen, float64(len(o.Recoveries)))
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	bladeMetrics(&o, gauge, count)
	for _, k := range counters {
		count(k.desc, k.value(&o.Counters))
	}
	for _, k := range dropped {
		count(descDropped, k.value(&o.Counters), k.reason)
	}
	c.appMetrics(ctx, gauge)
	c.methodMetrics(ctx, out)
	if o.Switch {
		c.portMetrics(ctx, count)
	}
}

// appMetrics counts deployments by state.
func (c rackCollector) appMetrics(ctx context.Context, gauge func(*prometheus.Desc, float64, ...string)) {
	all, err := c.backend.Deployments(ctx)
	if err != nil {
		return
	}
	n := map[resources.AppState]int{}
	for i := range all {
		n[all[i].State()]++
	}
	for _, s := range resources.AppStates() {
		gauge(descApps, float64(n[s]), string(s))
	}
}

// methodMetrics tells of the calls of each method, of which there are trace.MaxMethods at most.
// Each bucket names a call that fell into it, for who scrapes OpenMetrics.
func (c rackCollector) methodMetrics(ctx context.Context, out chan<- prometheus.Metric) {
	all, err := c.backend.Methods(ctx)
	if err != nil {
		return
	}
	for i := range all {
		m := &all[i]
		for code, n := range m.Ended {
			out <- prometheus.MustNewConstMetric(descEnded, prometheus.CounterValue, float64(n), m.Service, m.Method, code.String())
		}
		out <- prometheus.MustNewConstMetric(descOpen, prometheus.GaugeValue, float64(m.Open), m.Service, m.Method)
		below, total := map[float64]uint64{}, uint64(0)
		var examples []prometheus.Exemplar
		for i, n := range m.Buckets {
			if total += n; i < len(trace.Bounds) {
				below[trace.Bounds[i]] = total
			}
			if e := &m.Examples[i]; n > 0 {
				examples = append(examples, prometheus.Exemplar{Value: e.Seconds, Timestamp: e.At, Labels: prometheus.Labels{"trace_id": e.Call.String()}})
			}
		}
		h := prometheus.MustNewConstHistogram(descTook, total, m.Seconds, below, m.Service, m.Method)
		if len(examples) > 0 {
			h = prometheus.MustNewMetricWithExemplars(h, examples...)
		}
		out <- h
	}
}

// portMetrics tells what the switch has stopped of each port; nothing if it does not answer.
func (c rackCollector) portMetrics(ctx context.Context, count func(*prometheus.Desc, uint64, ...string)) {
	drops, err := c.backend.Drops(ctx)
	if err != nil {
		return
	}
	for _, d := range drops {
		port := strconv.Itoa(int(d.Port))
		if d.Denied > 0 {
			count(descPortDeny, d.Denied, port, d.Blade)
		}
		for reason, n := range d.Dropped {
			count(descPortDrop, n, port, d.Blade, reason)
		}
		for reason, n := range d.Throttled {
			count(descThrottled, n, port, d.Blade, reason)
		}
		for reason, n := range d.Refused {
			count(descPortRefus, n, port, d.Blade, reason)
		}
	}
}

// bladeMetrics tells of blades; their number is bounded by the switch's ports, and
// that of their names by the Gatekeeper.
func bladeMetrics(o *gatekeeper.Overview, gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64, ...string)) {
	type class struct{ kind, status string }
	n := map[class]int{}
	for _, kind := range []string{control.Compute, control.Memory} {
		for _, status := range []string{gatekeeper.StatusFree, gatekeeper.StatusInUse, gatekeeper.StatusDraining, gatekeeper.StatusFailed} {
			n[class{kind, status}] = 0
		}
	}
	for i := range o.Blades {
		b := &o.Blades[i]
		n[class{b.Kind, b.Status}]++
		if b.Kind == control.Memory {
			gauge(descCapacity, float64(b.Capacity), b.Name)
			gauge(descUsed, float64(b.Used), b.Name)
			if l := b.Ledgers; l != nil {
				gauge(descLedgerMax, float64(l.Total), b.Name)
				gauge(descLedgers, float64(l.Used), b.Name)
				count(descLedgerNo, l.Refused, b.Name)
			}
		}
	}
	for i := range o.Machines {
		m := &o.Machines[i]
		gauge(descCopies, float64(m.InService), strconv.Itoa(int(m.Machine)))
	}
	for c, v := range n {
		gauge(descBlades, float64(v), c.kind, c.status)
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
