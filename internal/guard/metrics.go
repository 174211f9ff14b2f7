//go:build linux

package guard

import "github.com/prometheus/client_golang/prometheus"

var droppedDesc = prometheus.NewDesc("bifrost_guard_dropped_packets_total",
	"Packets of programs on this blade that were dropped: they spoke for another user's node or for the daemon, or passed by the switch.", []string{"reason"}, nil)

// Describe implements prometheus.Collector.
func (g *Guard) Describe(to chan<- *prometheus.Desc) { to <- droppedDesc }

// Collect implements prometheus.Collector.
func (g *Guard) Collect(to chan<- prometheus.Metric) {
	dropped, err := g.Dropped()
	if err != nil {
		to <- prometheus.NewInvalidMetric(droppedDesc, err)
		return
	}
	for _, r := range Reasons {
		to <- prometheus.MustNewConstMetric(droppedDesc, prometheus.CounterValue, float64(dropped[r]), string(r))
	}
}
