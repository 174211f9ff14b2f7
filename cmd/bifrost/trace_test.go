package main

import (
	"context"
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
			Steps: []api.Step{{Time: at(20), Kind: "sent"}, {Time: at(60), Kind: "replayed", Node: x, Attempt: 1, Why: "killed\nby hand"}},
			Code:  "declared", Exception: "Missing", Text: "no such key\n", Arguments: 120, Answer: 4 << 10, Headers: []api.Header{{Name: "tenant", Value: "blue"}}},
		{ID: "d", Depth: 1, Parent: "a", Caller: s, Callee: x, Method: "log", Policy: "none", A1: at(86)},
	}}
	var out strings.Builder
	must(t, printTrace(&out, &trace, names{c: "c1/client", s: "s1/front", x: "s2/counter"}))
	lines := strings.Split(out.String(), "\n")
	for i, want := range map[int]string{
		2: "  Front.add  c1/client → s1/front      │░░░░████████████████████████████████▒▒▒▒│ 100.000 ms  recover  ok",
		3: "*   Counter.add  s1/front → s2/counter │        ░░██████████████████████▒▒▒     │ 65.000 ms  recover  declared Missing, run again 1 times",
		7: "* call b: arguments 120 B, answer 4 KiB",
		8: `  ended with declared Missing: no such key\n`,
		9: "  header tenant: blue",
		5: "    log  s1/front → s2/counter         │                                  ░░░░░░│ -  none  sent",
	} {
		if lines[i] != want {
			t.Errorf("line %d:\n%s\nwant\n%s", i, lines[i], want)
		}
	}
	for i, want := range map[int]string{4: `+60.000 ms  replayed at s2/counter: killed\nby hand`} {
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

// until is a writer that ends something when a text has been written.
type until struct {
	text string
	end  func()
	all  strings.Builder
}

func (u *until) Write(b []byte) (int, error) {
	u.all.Write(b)
	if strings.Contains(u.all.String(), u.text) {
		u.end()
	}
	return len(b), nil
}

// Who follows calls sees each once, when it is over, and the names of nodes that have left; Ctrl-C is the end.
func TestFollow(t *testing.T) {
	address, _ := watched(t)
	for command, text := range map[string]string{"trace -f --json": `"method":"ping"`, "trace -f --caller c1/caller": "Ping.ping  c1/caller  c1/client", "history -f": "MINUTE"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		out := &until{text: text, end: cancel}
		root := newRoot()
		root.SetArgs(append(strings.Fields(command), "--admin-addr", address))
		root.SetOut(out)
		if err := root.ExecuteContext(ctx); err != nil || strings.Count(out.all.String(), text) != 1 {
			t.Errorf("bifrost %s: %v\n%s", command, err, out.all.String())
		}
		cancel()
	}
}
