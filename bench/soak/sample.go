package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/metrics"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// footprint is what a process has at a moment.
type footprint struct {
	Resident    int64 `json:"resident"` // bytes of memory
	Heap        int64 `json:"heap"`     // bytes that the last garbage collection found in use; 0 before there was one
	Descriptors int64 `json:"descriptors"`
	Goroutines  int64 `json:"goroutines"`
}

// sample is what the whole rack has at a moment.
type sample struct {
	Seconds    float64              `json:"seconds"` // since the callers began
	Calls      int64                `json:"calls"`   // made so far
	LogRecords int64                `json:"log_records"`
	LogBytes   int64                `json:"log_bytes"` // of the records
	LogFiles   int64                `json:"log_files"` // bytes of the log's files
	Processes  map[string]footprint `json:"processes"`
}

// sampler takes samples of a rack's processes. It belongs to one goroutine.
type sampler struct {
	dir       string
	processes []string
	began     time.Time
	started   map[string]float64 // when each process was
}

func newSampler(dir string, processes []string) *sampler {
	return &sampler{dir: dir, processes: processes, began: time.Now(), started: map[string]float64{}}
}

// readyTimeout bounds how long all processes may take to show their metrics.
const readyTimeout = 20 * time.Second

// ready waits until every process shows its metrics.
func (s *sampler) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := s.take(ctx)
		if err == nil {
			s.began = time.Now()
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// take takes a sample. A process that has ended, or was started again, is an error.
func (s *sampler) take(ctx context.Context) (sample, error) {
	x := sample{Seconds: time.Since(s.began).Seconds(), Processes: map[string]footprint{}}
	for _, name := range s.processes {
		socket := plan.MetricsPath(s.dir, name)
		if name == plan.Gatekeeper {
			socket = plan.AdminPath(s.dir)
		}
		m, err := metrics.Read(ctx, socket)
		if err != nil {
			return x, fmt.Errorf("%s does not answer: %w", name, err)
		}
		at := m["process_start_time_seconds"]
		if was, ok := s.started[name]; ok && was != at {
			return x, fmt.Errorf("%s has ended and was started again", name)
		}
		s.started[name] = at
		x.Processes[name] = footprint{
			Resident: int64(m["process_resident_memory_bytes"]), Heap: int64(m["go_gc_heap_live_bytes"]),
			Descriptors: int64(m["process_open_fds"]), Goroutines: int64(m["go_goroutines"]),
		}
		x.Calls += int64(m[callsMetric])
		if name == plan.Gatekeeper {
			x.LogRecords, x.LogBytes = int64(m["bifrost_gatekeeper_log_records"]), int64(m["bifrost_gatekeeper_log_bytes"])
		}
	}
	var err error
	x.LogFiles, err = sizeOf(plan.LogPath(s.dir))
	return x, err
}

// sizeOf is the size of all files of a directory, which come and go.
func sizeOf(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreGone(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreGone(err)
		}
		bytes += info.Size()
		return nil
	})
	return bytes, err
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
