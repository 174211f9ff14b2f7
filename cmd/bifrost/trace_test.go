package main

import (
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
)

// The picture of a call whose nested call's node fails.
func TestTrace_Picture(t *testing.T) {
	begin := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	c, s, x := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::3")
	trace := api.Trace{Call: "b", Calls: []api.Timeline{
		{ID: "a", Caller: c, Callee: s, Service: "Front", Method: "add", Policy: "recover", A1: at(0), B1: at(10), B2: at(90), A2: at(100), Over: true},
		{ID: "b", Depth: 1, Parent: "a", Caller: s, Callee: x, Service: "Counter", Method: "add", Policy: "recover", A1: at(20), B1: at(25), B2: at(80), A2: at(85), Over: true, Attempts: 1,
			Steps: []api.Step{{Time: at(20), Kind: "sent"}, {Time: at(60), Kind: "replayed", Node: x, Attempt: 1}}},
		{ID: "d", Depth: 1, Parent: "a", Caller: s, Callee: x, Method: "log", Policy: "none", A1: at(86), Sampled: true},
	}}
	var out strings.Builder
	must(t, printTrace(&out, &trace, names{c: "c1/client", s: "s1/front", x: "s2/counter"}))
	lines := strings.Split(out.String(), "\n")
	for i, want := range map[int]string{
		2: "  Front.add  c1/client → s1/front      │░░░░████████████████████████████████▒▒▒▒│ 100.000 ms  recover  ok",
		3: "*   Counter.add  s1/front → s2/counter │        ░░██████████████████████▒▒▒     │ 65.000 ms  recover  ok, run again 1 times",
		5: "    log  s1/front → s2/counter         │                                  ░░░░░░│ -  none  sent ~",
	} {
		if lines[i] != want {
			t.Errorf("line %d:\n%s\nwant\n%s", i, lines[i], want)
		}
	}
	for i, want := range map[int]string{4: "+60.000 ms  replayed at s2/counter"} {
		if !strings.HasSuffix(lines[i], want) {
			t.Errorf("line %d: %q, want %q", i, lines[i], want)
		}
	}
	for i := range trace.Calls { // a node may say that its call has lasted for as long as it likes
		trace.Calls[i].A1 = begin.Add(math.MinInt64)
	}
	trace.Calls[0].A2 = begin.Add(math.MaxInt64)
	out.Reset()
	must(t, printTrace(&out, &trace, names{}))
	if lines := strings.Split(out.String(), "\n"); !strings.HasSuffix(lines[0], " ms") || !strings.Contains(lines[2], "│░") {
		t.Errorf("a long call:\n%s", out.String())
	}
	if !strings.Contains(lines[0], "3 calls in 100.000 ms") {
		t.Errorf("headline %q", lines[0])
	}
}
