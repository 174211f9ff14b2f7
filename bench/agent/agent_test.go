package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/bench/peer"
)

// TestMain is an agent, too: tests start this program as one.
func TestMain(m *testing.M) {
	if os.Getenv("BIFROST_TEST_AGENT") != "" {
		if err := Run(context.Background(), os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func site(p string) peer.Site {
	return peer.NewSite(p, false, netip.IPv6Loopback())
}

// ask has an agent in this process do requests and returns its answers.
func ask(t *testing.T, requests ...Request) (answers []Answer) {
	t.Helper()
	var in, out bytes.Buffer
	for _, r := range requests {
		if err := json.NewEncoder(&in).Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := Run(t.Context(), &in, &out); err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(&out); ; {
		var a Answer
		err := d.Decode(&a)
		if err == io.EOF {
			return answers
		}
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
}

func measure(callers int) *Measure {
	return &Measure{Work: peer.Work{Op: peer.Ping}, Callers: callers, Warmup: time.Millisecond, For: 20 * time.Millisecond}
}

// One agent may be server and client, and measures with any number of callers.
func TestMeasure(t *testing.T) {
	role := &Role{Peer: "thrift-framed", Site: site("thrift-framed")}
	got := ask(t, Request{Serve: role}, Request{Dial: role}, Request{Measure: measure(1)}, Request{Measure: measure(7)})
	if len(got) != 4 {
		t.Fatalf("%d answers", len(got))
	}
	for i, a := range got {
		if a.Error != "" {
			t.Errorf("answer %d: %s", i, a.Error)
		}
		if i >= 2 && (a.Result == nil || a.Result.N < 1 || a.Result.P50 <= 0 || a.Result.P99 < a.Result.P50 || a.Result.Rate <= 0) {
			t.Errorf("answer %d: %+v", i, a.Result)
		}
	}
}

// Phases are of what was measured since the last time, per part.
func TestPhases(t *testing.T) {
	role := &Role{Peer: "thrift-framed", Site: site("thrift-framed")}
	m := measure(1)
	m.Work, m.Phases, m.Max = peer.Work{Op: peer.Add, Size: 1000}, true, 5
	got := ask(t, Request{Serve: role}, Request{Dial: role}, Request{Measure: m}, Request{Phases: true}, Request{Phases: true})
	last := got[3].Phases
	if n := got[2].Result.N; n != 5 || last[peer.Call].Count != 5 || last[peer.Marshal].Count != 10 || last[peer.Call].Nanos < last[peer.Marshal].Nanos {
		t.Errorf("%d operations, %+v", n, last)
	}
	if len(got[4].Phases) != 0 {
		t.Errorf("again: %+v", got[4].Phases)
	}
}

// What means nothing is answered by an error, and the agent goes on.
func TestBadRequests(t *testing.T) {
	role := &Role{Peer: "tcp", Site: site("tcp")}
	for _, tc := range []struct {
		request Request
		want    string
	}{
		{Request{}, "means nothing"},
		{Request{Measure: measure(1)}, "too early"},
		{Request{Phases: true}, "too early"},
		{Request{Serve: &Role{Peer: "pigeon", Site: site("tcp")}}, `no peer "pigeon"`},
		{Request{Serve: &Role{Peer: "tcp"}}, "no server 0 of 0"},
		{Request{Serve: &Role{Peer: "tcp", Site: peer.Site{Servers: []netip.Addr{netip.IPv6Loopback()}, Index: 1}}}, "no server 1 of 1"},
	} {
		if got := ask(t, tc.request); len(got) != 1 || !strings.Contains(got[0].Error, tc.want) {
			t.Errorf("%+v: %+v", tc.request, got)
		}
	}
	for _, m := range []Measure{{}, {Callers: 1}, {Callers: 2000, For: 1}, {Callers: 1, For: time.Hour}, {Callers: 1, For: 1, Max: -1}} {
		got := ask(t, Request{Serve: role}, Request{Dial: role}, Request{Measure: &m})
		if got[2].Error == "" {
			t.Errorf("%+v was measured", m)
		}
	}
	m := measure(1)
	m.Work = peer.Work{Op: peer.Transfer, Size: peer.MaxTransfer + 1}
	if got := ask(t, Request{Serve: role}, Request{Dial: role}, Request{Measure: m}); !strings.Contains(got[2].Error, "sizes are 0 to") {
		t.Errorf("a size out of range: %+v", got[2])
	}
}

// A line that is no request is an error like any other.
func TestForeignLine(t *testing.T) {
	var out bytes.Buffer
	if err := Run(t.Context(), strings.NewReader("hello\n{}\n"), &out); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), `"error"`); n != 2 {
		t.Errorf("answers: %s", out.String())
	}
}

// start starts this program as an agent.
func start(t *testing.T, env ...string) *Process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	p, err := Start("an agent", cmd, (*exec.Cmd).Start)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Agents in processes of their own work, and end when they are told.
func TestProcess(t *testing.T) {
	role := &Role{Peer: "udp", Site: site("udp")}
	server, client := start(t, "BIFROST_TEST_AGENT=1"), start(t, "BIFROST_TEST_AGENT=1")
	defer server.Close()
	defer client.Close()
	if _, err := server.Ask(t.Context(), Request{Serve: role}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Ask(t.Context(), Request{Dial: role}); err != nil {
		t.Fatal(err)
	}
	a, err := client.Ask(t.Context(), Request{Measure: measure(1)})
	if err != nil || a.Result.N < 1 {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := client.Ask(t.Context(), Request{}); err == nil || !strings.Contains(err.Error(), "an agent: a request that means nothing") {
		t.Errorf("a bad request: %v", err)
	}
}

// A server that cannot start says why, with the name of the agent; one that is
// gone says what it said last.
func TestProcessFails(t *testing.T) {
	role := &Role{Peer: "tcp", Site: site("tcp")}
	first, second := start(t, "BIFROST_TEST_AGENT=1"), start(t, "BIFROST_TEST_AGENT=1")
	defer first.Close()
	defer second.Close()
	if _, err := first.Ask(t.Context(), Request{Serve: role}); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Ask(t.Context(), Request{Serve: role}); err == nil || !strings.Contains(err.Error(), "an agent: socket at") {
		t.Errorf("an address in use: %v", err)
	}
	cmd := exec.Command("sh", "-c", "echo it is broken >&2; exit 1")
	broken, err := Start("a shell", cmd, (*exec.Cmd).Start)
	if err != nil {
		t.Fatal(err)
	}
	defer broken.Close()
	if _, err := broken.Ask(t.Context(), Request{Phases: true}); err == nil || !strings.Contains(err.Error(), "a shell has ended: it is broken") {
		t.Errorf("one that ends: %v", err)
	}
	if _, err := Start("nothing", exec.Command("/no/such/file"), (*exec.Cmd).Start); err == nil {
		t.Error("a program that is not there was started")
	}
}

func TestFormatCPUs(t *testing.T) {
	if got := strings.Join(Args([]int{0, 3}), " "); got != "bench agent --cpus 0,3" {
		t.Error(got)
	}
}
