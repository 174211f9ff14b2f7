package metrics

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestServe: what a process serves can be read, also where a killed process has left
// its socket; when it has stopped, nothing answers.
func TestServe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.sock")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	_ = left.Close()
	calls := prometheus.NewCounter(prometheus.CounterOpts{Name: "calls_total", Help: "Calls."})
	calls.Add(7)
	labelled := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "packets_total", Help: "Packets."}, []string{"port", "direction"})
	labelled.WithLabelValues("1", "in").Add(3)
	stop, err := Serve(t.Context(), "unix:"+path, calls, labelled)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if got["calls_total"] != 7 || got[`packets_total{direction="in",port="1"}`] != 3 {
		t.Errorf("calls_total %v, want 7; all: %v", got["calls_total"], got)
	}
	for _, name := range []string{"go_goroutines", "process_open_fds", "process_resident_memory_bytes"} {
		if got[name] < 1 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
	if _, ok := got["go_gc_heap_live_bytes"]; !ok {
		t.Error("no go_gc_heap_live_bytes")
	}
	stop()
	if _, err := Read(t.Context(), path); err == nil {
		t.Error("a stopped server has answered")
	}
}

// TestServe_Mistakes: an address that cannot be listened on is named in the error.
func TestServe_Mistakes(t *testing.T) {
	for _, address := range []string{"nowhere", "unix:" + filepath.Join(t.TempDir(), "no", "directory")} {
		if stop, err := Serve(t.Context(), address); err == nil {
			stop()
			t.Errorf("%s was accepted", address)
		}
	}
}
