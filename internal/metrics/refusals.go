package metrics

import "github.com/prometheus/client_golang/prometheus"

// refusals is a Collector of what owners were refused beyond their share (package share).
type refusals struct {
	desc    *prometheus.Desc
	sources []Refused
}

// Refused tells how often each owner was refused something. Of few owners: what exceeds share.MaxOwners is under one name.
type Refused func(each func(owner, what string, n uint64))

// Refusals returns a collector of refusals: one figure for each owner, under the given label, and each kind of thing. The
// sources are asked each time that metrics are read.
func Refusals(name, help, owner string, sources ...Refused) prometheus.Collector {
	return refusals{prometheus.NewDesc(name, help, []string{owner, "what"}, nil), sources}
}

// Describe implements prometheus.Collector.
func (r refusals) Describe(to chan<- *prometheus.Desc) { to <- r.desc }

// Collect implements prometheus.Collector.
func (r refusals) Collect(to chan<- prometheus.Metric) {
	for _, source := range r.sources {
		source(func(owner, what string, n uint64) {
			to <- prometheus.MustNewConstMetric(r.desc, prometheus.CounterValue, float64(n), owner, what)
		})
	}
}
