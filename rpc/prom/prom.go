// Package prom gives what a node has seen of its calls to Prometheus, under the names of
// OpenTelemetry's semantic conventions for RPC as Prometheus writes them: latency and
// sizes by service and method, on the calling and on the serving side.
//
//	rpc_client_call_duration_seconds{rpc_system_name="bifrost",rpc_service="Arrays",rpc_method="add",error_type=""}
//	rpc_server_call_duration_seconds
//	rpc_client_request_size_bytes, rpc_client_response_size_bytes, and rpc_server_…
//
// error_type is empty for a call that succeeded, else the name of its code.
package prom

import (
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
	}
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
