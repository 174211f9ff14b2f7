package switches

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// measureFootprint measures this process.
func measureFootprint() (f footprint, err error) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	f.Heap, f.Goroutines = m.HeapAlloc, runtime.NumGoroutine()
	fds, err := os.ReadDir("/proc/self/fdinfo")
	if err != nil {
		return f, err
	}
	f.Descriptors = len(fds)
	for _, fd := range fds {
		f.Maps += mapBytes("/proc/self/fdinfo/" + fd.Name())
	}
	return f, nil
}

// mapBytes is the memory of the kernel's map behind a descriptor, 0 if it is
// something else.
func mapBytes(path string) uint64 {
	file, err := os.Open(path)
	if err != nil {
		return 0 // closed meanwhile
	}
	defer file.Close()
	for s := bufio.NewScanner(file); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "memlock:"); ok {
			var n uint64
			_, _ = fmt.Sscan(v, &n)
			return n
		}
	}
	return 0
}
