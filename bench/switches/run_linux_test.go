package switches

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A run of a second or so: every contender carries packets, and the numbers make
// sense.
func TestRun(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	r, err := Run(t.Context(), Options{Rules: 100, Rounds: 1, RoundTrip: 50 * time.Millisecond, Stream: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if q := r.RoundTrip[name]; q.P50 <= 0 || q.P99 < q.P50 || r.TCP[name] <= 0 {
			t.Errorf("%s: %+v, TCP %v", name, q, r.TCP[name])
		}
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "ebpf/bridge") {
		t.Errorf("%v: %s", err, out.String())
	}
	if r.Ratio["ebpf/bridge"] <= 0 || r.Updates["ebpf"] <= 0 {
		t.Errorf("%+v", r)
	}
}

func TestSummary(t *testing.T) {
	trips := func(us ...int) (d []time.Duration) {
		for _, u := range us {
			d = append(d, time.Duration(u)*time.Microsecond)
		}
		return d
	}
	r := summary(7, map[string]*samples{
		"ebpf":   {trips: trips(30, 10, 20), rates: []float64{1e9}, updates: 5},
		"bridge": {trips: trips(40, 40, 40), rates: []float64{2e9}},
	})
	if r.Rules != 7 || r.RoundTrip["ebpf"].P50 != 20 || r.Ratio["ebpf/bridge"] != 0.5 || r.TCPRatio["ebpf/bridge"] != 0.5 ||
		r.TCP["ebpf"] != 8 || r.Updates["ebpf"] != 5 {
		t.Errorf("%+v", r)
	}
}
