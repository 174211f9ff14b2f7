package switches

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

// measureFootprint measures this process.
func measureFootprint() (f footprint, err error) {
	debug.FreeOSMemory() // or resident would count garbage
	if f, err = footprintOf("self"); err != nil {
		return f, err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f.Heap, f.Goroutines = m.HeapAlloc, runtime.NumGoroutine()
	return f, nil
}

// footprintOf measures what can be seen of a process from outside.
func footprintOf(pid string) (f footprint, err error) {
	statm, err := os.ReadFile("/proc/" + pid + "/statm")
	if err != nil {
		return f, err
	}
	if _, err := fmt.Sscan(string(statm), new(uint64), &f.Resident); err != nil {
		return f, fmt.Errorf("/proc/%s/statm: %w", pid, err)
	}
	f.Resident *= uint64(os.Getpagesize())
	fds, err := os.ReadDir("/proc/" + pid + "/fdinfo")
	if err != nil {
		return f, err
	}
	f.Descriptors = len(fds)
	for _, fd := range fds {
		f.addKernel("/proc/" + pid + "/fdinfo/" + fd.Name())
	}
	return f, nil
}

// addKernel adds what a descriptor keeps in the kernel, if that is BPF's.
func (f *footprint) addKernel(path string) {
	file, err := os.Open(path)
	if err != nil {
		return // closed meanwhile
	}
	defer file.Close()
	isMap := false
	for s := bufio.NewScanner(file); s.Scan(); {
		switch name, v, _ := strings.Cut(s.Text(), ":"); {
		case name == "prog_type":
			f.Programs++
			return
		case name == "map_type":
			isMap = true
			f.MapCount++
		case name == "memlock" && isMap:
			var n uint64
			_, _ = fmt.Sscan(v, &n)
			f.Maps += n
			return
		}
	}
}
