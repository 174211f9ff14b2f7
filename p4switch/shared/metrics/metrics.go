// Package metrics serves the metrics of a process to Prometheus: those of the Go
// runtime and of the process, and whatever else its program counts.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// liveHeap is what the last garbage collection found in use: unlike the heap's size
// it does not depend on how long ago that was.
var liveHeap = collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile("^/gc/heap/live:bytes$")}

// OfProcess returns the collectors that every process has: go_goroutines,
// go_gc_heap_live_bytes, process_open_fds, process_resident_memory_bytes and others.
func OfProcess() []prometheus.Collector {
	return []prometheus.Collector{
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(liveHeap)),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}
}

// Serve answers Prometheus at an address, HOST:PORT or unix:PATH, on the path
// /metrics, until the function that it returns is called. It serves what OfProcess
// returns and more. A socket that a killed process has left at PATH is replaced.
func Serve(ctx context.Context, address string, more ...prometheus.Collector) (stop func(), err error) {
	l, err := listen(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("--metrics-addr %s: %w", address, err)
	}
	registry := prometheus.NewRegistry()
	for _, c := range append(OfProcess(), more...) {
		registry.MustRegister(c)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return // the listener is gone, and so is the process
		}
	}()
	return func() { _ = srv.Close(); <-done }, nil
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return lc.Listen(ctx, "tcp", address)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return lc.Listen(ctx, "unix", path)
}

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
