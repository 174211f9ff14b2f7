package devrack

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/bifrost-rack/bifrost/internal/wire"
)

// dropped counts what the rack's network has dropped.
var dropped = prometheus.NewDesc("bifrost_dev_dropped_datagrams_total", "Datagrams and frames that did not reach a program or a blade.", []string{"blade", "reason"}, nil)

// reasons are why a blade drops what comes to it.
var reasons = map[string]func(*wire.HostStats) uint64{
	"queue_full":   func(s *wire.HostStats) uint64 { return s.QueueFull.Load() },
	"no_endpoint":  func(s *wire.HostStats) uint64 { return s.NoEndpoint.Load() },
	"foreign":      func(s *wire.HostStats) uint64 { return s.Foreign.Load() },
	"malformed":    func(s *wire.HostStats) uint64 { return s.Malformed.Load() },
	"bad_checksum": func(s *wire.HostStats) uint64 { return s.BadChecksum.Load() },
}

// collector tells Prometheus of the drops.
type collector struct{ of *rack }

func (r *rack) metrics() []prometheus.Collector { return []prometheus.Collector{collector{r}} }

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) { to <- dropped }

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	send := func(blade, reason string, n uint64) {
		to <- prometheus.MustNewConstMetric(dropped, prometheus.CounterValue, float64(n), blade, reason)
	}
	hosts := append([]string(nil), memoryBlades...)
	for name, s := range c.of.sockets {
		hosts = append(hosts, name)
		send(name, "unsent", s.relay.Dropped.Load())
	}
	for _, name := range hosts {
		stats := &c.of.rig.Host(name).Stats
		for reason, count := range reasons {
			send(name, reason, count(stats))
		}
	}
}
