package wal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/disk"
)

// BenchmarkAppend is the time from Append until the record is logged, by one
// caller and by 64 at a time; each call adds a record and deletes an older one,
// as calls do that come and go. It reports percentiles and records per second.
func BenchmarkAppend(b *testing.B) {
	for _, name := range []string{"pebble", "memory"} {
		for _, sync := range []bool{false, true} {
			if sync && name == "memory" {
				continue
			}
			for _, size := range []int{300, 4000, 60000} {
				for _, callers := range []int{1, 64} {
					mode := map[bool]string{false: "cache", true: "sync"}[sync]
					b.Run(fmt.Sprintf("%s/%s/size=%d/callers=%d", name, mode, size, callers), func(b *testing.B) {
						benchmarkAppend(b, openBench(b, name, sync), size, callers)
					})
				}
			}
		}
	}
}

func openBench(b *testing.B, name string, sync bool) *Log {
	var s store
	var err error
	switch dir := b.TempDir(); name {
	case "pebble":
		s, err = openPebble(filepath.Join(dir, "log"), disk.Options{Sync: sync})
	default:
		s, err = new(Disk).opened(false)
	}
	if err != nil {
		b.Fatal(err)
	}
	l, err := open(s, Options{Sync: sync})
	if err != nil {
		b.Fatal(err)
	}
	return l
}

func benchmarkAppend(b *testing.B, l *Log, size, callers int) {
	id := func(caller, k int) (id ID) {
		binary.BigEndian.PutUint32(id[:], uint32(caller))
		binary.BigEndian.PutUint64(id[8:], uint64(k))
		return id
	}
	packet := make([]byte, size)
	took := make([][]time.Duration, callers)
	var wg sync.WaitGroup
	b.ResetTimer()
	for c := range callers {
		wg.Go(func() {
			for k := range (b.N + callers - 1) / callers {
				at := time.Now()
				var batch Batch
				batch.Put(Record{Kind: KindNode, ID: id(c, k), Time: at, Data: packet})
				batch.Delete(KindNode, id(c, k-20))
				if err := l.Append(context.Background(), &batch); err != nil {
					b.Error(err)
					return
				}
				took[c] = append(took[c], time.Since(at))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds())/1e3, "p99-µs")
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkOpen is the recovery of 100,000 records of 1,000 bytes.
func BenchmarkOpen(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "log")
	l, err := Open(dir, Options{})
	if err != nil {
		b.Fatal(err)
	}
	var batch Batch
	for k := range 100_000 {
		var id ID
		binary.BigEndian.PutUint64(id[:], uint64(k))
		batch.Put(Record{Kind: KindNode, ID: id, Data: make([]byte, 1000)})
	}
	if err := errors.Join(l.Append(context.Background(), &batch), l.Close()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		l, err := Open(dir, Options{})
		if err != nil {
			b.Fatal(err)
		}
		count := 0
		for _, err := range l.Records() {
			if err != nil {
				b.Fatal(err)
			}
			count++
		}
		if err := l.Close(); err != nil || count != 100_000 {
			b.Fatal(count, err)
		}
	}
}
