// Package prom gives what a node has seen of its calls to Prometheus, under the names of
// OpenTelemetry's semantic conventions for RPC as Prometheus writes them: latency and
// sizes by service and method, on the calling and on the serving side.
//
//	rpc_client_call_duration_seconds{rpc_system_name="bifrost",rpc_service="Arrays",rpc_method="add",error_type=""}
//	rpc_server_call_duration_seconds
//	rpc_client_request_size_bytes, rpc_client_response_size_bytes, and rpc_server_…
//
// error_type is empty for a call that succeeded, else the name of its code. What the node
// has done with packets is there, too: rpc_node_resent_datagrams_total,
// rpc_node_dropped_datagrams_total{reason="full"}, rpc_node_exactly_once_calls_accepted_total and others,
// as rpc.Stats has them, and
// rpc_node_refused_datagrams_total{node="fd00:b1f0:0:2::7",reason="foreign"}: who sends what is refused.
package prom

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/bifrost-rack/bifrost/rpc"
)

// Collector collects a node's figures when it is scraped:
//
//	prometheus.MustRegister(prom.NewCollector(node))
type Collector struct {
	node         *rpc.Node
	times, sizes map[bool][]*prometheus.Desc // by whether the side is the server's
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector returns a collector for a node. A program with several nodes wraps each
// with a label of its own (prometheus.WrapCollectorWith).
func NewCollector(node *rpc.Node) *Collector {
	c := &Collector{node: node, times: map[bool][]*prometheus.Desc{}, sizes: map[bool][]*prometheus.Desc{}}
	for server, side := range map[bool]string{false: "client", true: "server"} {
		describe := func(name, help string, labels ...string) *prometheus.Desc {
			return prometheus.NewDesc("rpc_"+side+"_"+name, help, append([]string{"rpc_service", "rpc_method"}, labels...), prometheus.Labels{"rpc_system_name": "bifrost"})
		}
		c.times[server] = []*prometheus.Desc{describe("call_duration_seconds", "How long calls took.", "error_type")}
		c.sizes[server] = []*prometheus.Desc{
			describe("request_size_bytes", "Sizes of the calls' Thrift messages."), describe("response_size_bytes", "Sizes of the answers' Thrift messages."),
		}
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, to) }

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	stats := c.node.Stats()
	for _, k := range counters {
		to <- prometheus.MustNewConstMetric(k.desc, prometheus.CounterValue, float64(k.value(&stats)), k.labels...)
	}
	to <- prometheus.MustNewConstMetric(ledgerRoom, prometheus.GaugeValue, float64(stats.LedgerRoom))
	c.node.Refused(func(from netip.Addr, reason string, packets uint64) {
		node := "other"
		if from.IsValid() {
			node = from.String()
		}
		to <- prometheus.MustNewConstMetric(refused, prometheus.CounterValue, float64(packets), node, reason)
	})
	for _, m := range c.node.Methods() {
		for code, h := range m.Times {
			why := ""
			if code != rpc.OK {
				why = code.String()
			}
			send(to, c.times[m.Server][0], h, m.Service, m.Method, why)
		}
		send(to, c.sizes[m.Server][0], m.Requests, m.Service, m.Method)
		send(to, c.sizes[m.Server][1], m.Answers, m.Service, m.Method)
		for argument, from := range m.RegionFrom {
			to <- prometheus.MustNewConstMetric(regionFrom, prometheus.GaugeValue, float64(from), m.Service, m.Method, argument)
		}
	}
}

var ledgerRoom = prometheus.NewDesc("rpc_node_ledger_room_bytes", "What new calls may still take in the node's ledger; 0 before it has one, too.", nil, nil)

var regionFrom = prometheus.NewDesc("rpc_node_region_from_bytes",
	"From which length on a new value of an argument by reference is put into memory, by what callees have said of earlier ones.", []string{"rpc_service", "rpc_method", "argument"}, nil)

var refused = prometheus.NewDesc("rpc_node_refused_datagrams_total", "Datagrams of other nodes that were refused, by the node that sent them.", []string{"node", "reason"}, nil)

// counters are what rpc.Stats counts beside the calls of methods.
var counters = func() []counter {
	resent := prometheus.NewDesc("rpc_node_resent_datagrams_total", "Calls sent again, and answers to copies of calls.", nil, nil)
	parts := prometheus.NewDesc("rpc_node_sent_parts_total", "Parts of messages that exceed a packet.", nil, nil)
	values := prometheus.NewDesc("rpc_node_sent_values_total", "Values by reference that were sent inside a message, or put into memory for one.", []string{"where"}, nil)
	leases := prometheus.NewDesc("rpc_node_given_leases_total", "Standing leases that the node has given: others may read its values for longer than a call.", nil, nil)
	dropped := prometheus.NewDesc("rpc_node_dropped_datagrams_total", "Datagrams that led to nothing. For want of room (full) their senders try again.", []string{"reason"}, nil)
	exactly := func(what, help string) *prometheus.Desc {
		return prometheus.NewDesc("rpc_node_exactly_once_"+what+"_total", help, nil, nil)
	}
	mains := prometheus.NewDesc("rpc_node_durable_mains_total", "What durable mains have done.", []string{"what"}, nil)
	return []counter{
		{mains, []string{"calls"}, func(s *rpc.Stats) uint64 { return s.MainCalls }},
		{mains, []string{"checkpoints"}, func(s *rpc.Stats) uint64 { return s.MainCheckpoints }},
		{resent, nil, func(s *rpc.Stats) uint64 { return s.Resent }},
		{parts, nil, func(s *rpc.Stats) uint64 { return s.Parts }},
		{values, []string{"message"}, func(s *rpc.Stats) uint64 { return s.RefsInMessages }},
		{values, []string{"region"}, func(s *rpc.Stats) uint64 { return s.RefsInRegions }},
		{leases, nil, func(s *rpc.Stats) uint64 { return s.LeasesGiven }},
		{exactly("calls_accepted", "Exactly-once calls and one-ways that the node has accepted."), nil, func(s *rpc.Stats) uint64 { return s.Accepted }},
		{exactly("calls_stateful", "Of those accepted: calls and one-ways of services with state."), nil, func(s *rpc.Stats) uint64 { return s.Stateful }},
		{exactly("calls_lending", "Of those accepted: calls that lend regions."), nil, func(s *rpc.Stats) uint64 { return s.Lending }},
		{exactly("oneways_accepted", "Of those accepted: one-ways."), nil, func(s *rpc.Stats) uint64 { return s.Oneways }},
		{exactly("oneways_with_regions", "Of the one-ways accepted: those that hand regions over."), nil, func(s *rpc.Stats) uint64 { return s.OnewaysWithRegions }},
		{exactly("oneways_sent", "One-ways that left because an execution was done, or a checkpoint of a durable main settled."), nil, func(s *rpc.Stats) uint64 { return s.OnewaysSent }},
		{exactly("large_messages", "Exactly-once calls and one-ways that came, and answers, that exceed a packet."), nil, func(s *rpc.Stats) uint64 { return s.LargeMessages }},
		{exactly("calls_answered_from_ledger", "Copies of exactly-once calls that the node's ledger had the answer to."), nil, func(s *rpc.Stats) uint64 { return s.AnsweredFromLedger }},
		{exactly("calls_without_room", "Exactly-once calls dropped because the node's ledger has no room for them. They are sent again."), nil, func(s *rpc.Stats) uint64 { return s.NoRoom }},
		{exactly("executions_resumed", "Executions that earlier incarnations of the node had begun, and this one has run again or ended."), nil, func(s *rpc.Stats) uint64 { return s.Resumed }},
		{exactly("executions_given_up", "Of those resumed: calls given up since the node's program had ended too often while they ran."), nil, func(s *rpc.Stats) uint64 { return s.GivenUp }},
		{exactly("executions_committed", "Executions, and checkpoints of durable mains, whose changes in memory are committed."), nil, func(s *rpc.Stats) uint64 { return s.Committed }},
		{exactly("executions_rolled_back", "Executions, and runs of durable mains, whose changes in memory are taken back."), nil, func(s *rpc.Stats) uint64 { return s.RolledBack }},
		{exactly("regions_allocated", "Regions that executions and durable mains have allocated."), nil, func(s *rpc.Stats) uint64 { return s.RegionsAllocated }},
		{exactly("regions_freed", "Regions that executions and durable mains have freed."), nil, func(s *rpc.Stats) uint64 { return s.RegionsFreed }},
		{dropped, []string{"full"}, func(s *rpc.Stats) uint64 { return s.Full }},
		{dropped, []string{"duplicate"}, func(s *rpc.Stats) uint64 { return s.Duplicates }},
		{dropped, []string{"malformed"}, func(s *rpc.Stats) uint64 { return s.Malformed }},
		{dropped, []string{"foreign"}, func(s *rpc.Stats) uint64 { return s.Foreign }},
		{dropped, []string{"stale"}, func(s *rpc.Stats) uint64 { return s.Stale }},
	}
}()

type counter struct {
	desc   *prometheus.Desc
	labels []string
	value  func(s *rpc.Stats) uint64
}

// send makes a Prometheus histogram, whose buckets are cumulative.
func send(to chan<- prometheus.Metric, d *prometheus.Desc, h rpc.Histogram, labels ...string) {
	below, all := make(map[float64]uint64, len(h.Bounds)), uint64(0)
	for i, n := range h.Counts {
		all += n
		if i < len(h.Bounds) {
			below[h.Bounds[i]] = all
		}
	}
	to <- prometheus.MustNewConstHistogram(d, all, h.Sum, below, labels...)
}
