package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/bifrost-rack/bifrost/daemon"
)

func memoryMetric(name, help, label string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("bifrost_memory", "", name), help, []string{label}, nil)
}

var (
	metricServed   = memoryMetric("requests_total", "Requests answered with success.", "operation")
	metricFailed   = memoryMetric("refused_requests_total", "Requests answered with an error.", "operation")
	metricIgnored  = memoryMetric("dropped_packets_total", "Datagrams without an answer.", "reason")
	metricQuota    = memoryMetric("over_quota_total", "Allocations and changes that were refused to a node that had all that one may have.", "what")
	metricNoLedger = memoryMetric("refused_ledger_requests_total", "Requests and commands about ledgers that were refused.", "reason")
)

// memoryMetrics tells Prometheus of a memory server's counters.
type memoryMetrics struct{ d *daemon.Memory }

// Describe implements prometheus.Collector.
func (m memoryMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{metricServed, metricFailed, metricIgnored, metricQuota, metricNoLedger} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m memoryMetrics) Collect(to chan<- prometheus.Metric) {
	server := m.d.Server()
	if server == nil {
		return // not registered yet
	}
	c := server.Metrics()
	for desc, counts := range map[*prometheus.Desc]map[string]uint64{
		metricServed: c.Done, metricFailed: c.Failed, metricIgnored: c.Dropped, metricNoLedger: c.RefusedLedgers,
		metricQuota: {"allocation": c.Quotas.Allocations, "change": c.Quotas.Changes},
	} {
		for label, n := range counts {
			to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), label)
		}
	}
}
