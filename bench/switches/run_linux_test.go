package switches

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A short run: every contender carries packets, and the numbers make sense.
func TestRun(t *testing.T) {
	privilege.Need(t)
	const short = 50 * time.Millisecond
	r, err := Run(t.Context(), Options{Rules: 100, Rounds: 1, RoundTrip: short, Stream: short, Flood: short, Write: short})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all() {
		if c.missing() != "" {
			continue
		}
		if q := r.RoundTrip[c.name]; q.P50 <= 0 || q.P99 < q.P50 || r.TCP[c.name] <= 0 || r.UDP[c.name] <= 0 || r.Packets[c.name] <= 0 {
			t.Errorf("%s: %+v, TCP %v, UDP %v, %v packets", c.name, q, r.TCP[c.name], r.UDP[c.name], r.Packets[c.name])
		}
	}
	for _, name := range []string{"ebpf", "go"} {
		if e := r.Effect[name]; e.Deletions == 0 || e.Packets == 0 || e.Late > 0 {
			t.Errorf("%s: effect of deletions: %+v", name, e)
		}
		if r.Updates[name] <= 0 || r.Batched[name] <= 0 || r.Revoke[name].P50 <= 0 {
			t.Errorf("%s: %v updates a second, %v in batches, revocation %+v", name, r.Updates[name], r.Batched[name], r.Revoke[name])
		}
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "ebpf/bridge") || r.Ratio["ebpf/bridge"].Value <= 0 {
		t.Errorf("%v: %s", err, out.String())
	}
}

// To soak for longer: go test ./bench/switches -run TestSoak -soak 10m
var soakFor = flag.Duration("soak", 2*time.Second, "how long TestSoak soaks each executor")

func TestSoak(t *testing.T) {
	privilege.Need(t)
	for _, name := range []string{"ebpf", "go"} {
		t.Run(name, func(t *testing.T) {
			r, err := Soak(t.Context(), SoakOptions{Rules: 1000, Duration: *soakFor, Datapath: name})
			if err == nil {
				err = r.Wrong()
			}
			if err != nil {
				t.Errorf("%v\n%+v", err, r)
			}
			t.Logf("%d packets, %d verdicts checked, %d updates", r.Packets, r.Checked, r.Updates)
		})
	}
}

// The program with a register, a meter and a multicast group carries packets on both
// executors.
func TestRun_Stateful(t *testing.T) {
	privilege.Need(t)
	sums, err := os.ReadFile("stateful/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"stateful.p4", "stateful.json", "stateful.p4info.txt"} {
		data, err := os.ReadFile("stateful/" + f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(sums), fmt.Sprintf("%x  %s\n", sha256.Sum256(data), f)) {
			t.Errorf("%s is not what stateful/SHA256SUMS was made for: run stateful/compile.sh with p4c on PATH", f)
		}
	}
	const short = 20 * time.Millisecond
	r, err := Run(t.Context(), Options{Stateful: true, Rounds: 1, RoundTrip: short, Stream: short, Flood: short, Write: short})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ebpf", "go"} {
		if r.RoundTrip[name].P50 <= 0 || r.Packets[name] <= 0 {
			t.Errorf("%s: %+v, %v packets a second", name, r.RoundTrip[name], r.Packets[name])
		}
	}
}

// Only what the kernel forwards goes on while the process is away.
func TestSoak_RestartNeedsTheKernel(t *testing.T) {
	if _, err := Soak(t.Context(), SoakOptions{Datapath: "go", Restart: time.Minute}); err == nil {
		t.Error("the Go executor is restarted under load")
	}
}

func TestSummary(t *testing.T) {
	trips := func(us ...int) (rounds [][]time.Duration) { // one in each
		for _, u := range us {
			rounds = append(rounds, []time.Duration{time.Duration(u) * time.Microsecond})
		}
		return rounds
	}
	r := summary(7, map[string]*samples{
		"ebpf": {trips: trips(30, 10, 20), tcp: []float64{1e9}, packets: []float64{3, 1, 2}, writes: []writes{
			{single: 5, effect: Effect{1, 10, 0}}, {single: 6, effect: Effect{2, 20, 1}},
		}},
		// In the second round the machine was slow for both.
		"bridge": {trips: trips(40, 40, 40), tcp: []float64{2e9}, packets: []float64{4, 2, 8}},
	})
	if r.Rules != 7 || r.RoundTrip["ebpf"].P50 != 20 || r.Ratio["ebpf/bridge"] != (Ratio{0.5, 0.25, 0.75}) || r.TCPRatio["ebpf/bridge"] != (Ratio{0.5, 0.5, 0.5}) ||
		r.PacketRatio["ebpf/bridge"] != (Ratio{0.5, 0.25, 0.75}) || r.TCP["ebpf"] != 8 || r.Updates["ebpf"] != 6 || r.Effect["ebpf"] != (Effect{3, 30, 1}) {
		t.Errorf("%+v", r)
	}
	if _, ok := r.Ratio["go/bmv2"]; ok {
		t.Error("a ratio of contenders that were not there")
	}
	var out strings.Builder
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	// The table has 20 and 40 µs, and 2 and 4 packets a second: the ratios are of these. The rounds of TCP agree, the others do not.
	for _, want := range []string{"ebpf/bridge    0.50? (0.25 to 0.75)   0.50 (0.50 to 0.50)    0.50? (0.25 to 0.75)", "too busy to tell"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}
