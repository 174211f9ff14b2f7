package main

import (
	"strconv"

	"github.com/bifrost-rack/bifrost/p4/softswitch"
	"github.com/prometheus/client_golang/prometheus"
)

func switchMetric(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("bifrost_switch", "", name), help, labels, nil)
}

var (
	metricUp       = switchMetric("port_up", "Whether the port's interface is there and up.", "port", "interface")
	metricPackets  = switchMetric("port_packets_total", "Packets that came in or left.", "port", "interface", "direction")
	metricBytes    = switchMetric("port_bytes_total", "Bytes that came in or left.", "port", "interface", "direction")
	metricDropped  = switchMetric("port_dropped_packets_total", "Packets that could not come in or leave.", "port", "interface", "direction", "reason")
	metricVanished = switchMetric("port_vanished_total", "Times that the port's interface was gone.", "port", "interface")
	metricLookups  = switchMetric("table_lookups_total", "Lookups in a table, by whether they found an entry.", "table", "result")
	metricLost     = switchMetric("lost_packets_total", "Packets for ports that are not attached.")
	metricPacketIn = switchMetric("packet_in_dropped_total", "Packets for the controller that did not get to one.", "reason")
	metricDigest   = switchMetric("digests_dropped_total", "Digest samples that nobody had enabled, or without room.")
	metricOut      = switchMetric("packet_outs_total", "Packets from controllers.")
)

// switchMetrics tells Prometheus of a switch's counters.
type switchMetrics struct{ sw *softswitch.Switch }

// Describe implements prometheus.Collector.
func (m switchMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		metricUp, metricPackets, metricBytes, metricDropped, metricVanished, metricLookups, metricLost, metricPacketIn, metricDigest, metricOut,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m switchMetrics) Collect(to chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for _, p := range m.sw.Ports() {
		port := strconv.Itoa(int(p.Port))
		up := 0.0
		if p.Up {
			up = 1
		}
		to <- prometheus.MustNewConstMetric(metricUp, prometheus.GaugeValue, up, port, p.Name)
		count(metricPackets, p.RxPackets, port, p.Name, "in")
		count(metricPackets, p.TxPackets, port, p.Name, "out")
		count(metricBytes, p.RxBytes, port, p.Name, "in")
		count(metricBytes, p.TxBytes, port, p.Name, "out")
		count(metricVanished, p.Vanished, port, p.Name)
		for _, d := range []struct {
			direction, reason string
			n                 uint64
		}{
			{"in", "oversize", p.RxOversize}, {"in", "offload", p.RxOffload}, {"in", "full", p.RxFull}, {"in", "looped", p.Looped},
			{"out", "full", p.TxFull}, {"out", "too_long", p.TxTooLong}, {"out", "down", p.TxDown}, {"out", "offload", p.TxOffload},
		} {
			count(metricDropped, d.n, port, p.Name, d.direction, d.reason)
		}
	}
	for _, t := range m.sw.Tables() {
		count(metricLookups, t.Hits, t.Table, "hit")
		count(metricLookups, t.Misses, t.Table, "miss")
	}
	count(metricLost, m.sw.Lost())
	s := m.sw.Server().Stats()
	count(metricPacketIn, s.PacketInDrops, "no_room")
	count(metricPacketIn, s.PacketInErrors, "no_header")
	count(metricDigest, s.DigestDrops)
	count(metricOut, s.PacketOuts)
}
