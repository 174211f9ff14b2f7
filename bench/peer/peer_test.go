package peer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// up serves a peer on this machine and returns its client. A chain's stages are on
// two servers, as on two blades.
func up(t *testing.T, p Peer, chain bool) Client {
	t.Helper()
	servers := []netip.Addr{netip.IPv6Loopback()}
	if chain {
		servers = append(servers, servers[0])
	}
	s := NewSite(p.Name, chain, servers...)
	for i := range servers {
		s.Index = i
		server, err := p.Serve(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := server.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	client, err := p.Dial(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

// try performs an operation a few times, on a thread of its own as bare sockets
// want it.
func try(client Client, w Work) error {
	done := make(chan error, 1)
	go func() {
		op, release, err := client.Prepare(context.Background(), w)
		if err != nil {
			done <- err
			return
		}
		defer release()
		for range 3 {
			err = errors.Join(err, op(context.Background(), &Clock{}))
		}
		done <- err
	}()
	return <-done
}

// Every peer that needs no rack does all its operations with right results, from
// nothing to more than a datagram, buffer or frame holds.
func TestOperations(t *testing.T) {
	calls := []string{Ping, Increment, Add}
	values := append(calls, Transfer)
	for _, tc := range []struct {
		peer Peer
		ops  []string
	}{
		{udp, []string{Ping, Increment, Add, Read, Write, Transfer}},
		{udpSpin, []string{Ping, Increment}},
		{tcp, []string{Ping, Increment, Add, Read, Write, Transfer}},
		{thriftFramed, values}, {thriftBuffered, values}, {grpcPeer, calls}, {redis, []string{Read, Write}},
	} {
		t.Run(tc.peer.Name, func(t *testing.T) {
			if tc.peer.Missing != nil && tc.peer.Missing() != nil {
				t.Skip(tc.peer.Missing())
			}
			client := up(t, tc.peer, false)
			for _, op := range tc.ops {
				for _, size := range []int{0, 1, 1000, 20_000, 2 << 20} {
					err := try(client, Work{Op: op, Size: size, Reply: size})
					tooLarge := strings.HasPrefix(tc.peer.Name, "udp") && size > 60_000 && op != Ping
					if (err != nil) != tooLarge {
						t.Errorf("%s of %d bytes: %v", op, size, err)
					}
				}
			}
		})
	}
}

// A chain passes its argument through as many stages as it has been asked for.
func TestChain(t *testing.T) {
	for _, p := range []Peer{thriftFramed, thriftBuffered, grpcPeer} {
		t.Run(p.Name, func(t *testing.T) {
			client := up(t, p, true)
			for hops := 1; hops <= MaxHops; hops++ {
				if err := try(client, Work{Op: Chain, Size: 100_000, Hops: hops}); err != nil {
					t.Errorf("%d stages: %v", hops, err)
				}
			}
		})
	}
}

// What a peer cannot do is refused by name, and sizes out of range by all.
func TestRefusals(t *testing.T) {
	for _, p := range []Peer{udp, tcp, thriftFramed, grpcPeer} {
		client := up(t, p, false)
		for _, w := range []Work{
			{Op: "fly"}, {Op: Ping, Size: -1}, {Op: Increment, Size: MaxSize + 1}, {Op: Transfer, Reply: MaxTransfer + 1}, {Op: Chain, Hops: MaxHops + 1}, {},
		} {
			if err := try(client, w); err == nil {
				t.Errorf("%s: %+v was done", p.Name, w)
			}
		}
	}
	if _, err := Find("pigeon"); err == nil || !strings.Contains(err.Error(), `"pigeon"`) {
		t.Error(err)
	}
}

// A server that is not there, or an address in use, is an error that says where.
func TestNobodyThere(t *testing.T) {
	for _, p := range []Peer{udp, tcp, thriftFramed, thriftBuffered, grpcPeer} {
		s := NewSite(p.Name, false, netip.IPv6Loopback())
		s.Port += 500
		client, err := p.Dial(t.Context(), s)
		if err == nil {
			err = try(client, Work{Op: Ping})
			_ = client.Close()
		}
		if err == nil || !strings.Contains(err.Error(), fmt.Sprint(s.Port)) {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
	for _, p := range []Peer{tcp, thriftFramed, grpcPeer} {
		up(t, p, false)
		if second, err := p.Serve(t.Context(), NewSite(p.Name, false, netip.IPv6Loopback())); err == nil {
			t.Errorf("%s serves twice at one address", p.Name)
			_ = second.Close()
		}
	}
}

// Programs by reference need a compute blade, and say so.
func TestNoBlade(t *testing.T) {
	for _, p := range []Peer{bifrostPeer, bifrostRegions, bifrostKept, bifrostExact, thriftUDP, refChosen, refValue, refRegion} {
		if _, err := p.Serve(t.Context(), NewSite(p.Name, false, netip.IPv6Loopback())); err == nil || !strings.Contains(err.Error(), "compute") {
			t.Errorf("%s: %v", p.Name, err)
		}
		if !p.Managed {
			t.Errorf("%s needs no Gatekeeper", p.Name)
		}
	}
}

// Redis that is missing is named with the command that installs it.
func TestRedisMissing(t *testing.T) {
	t.Setenv("PATH", "")
	if _, err := exec.LookPath("redis-server"); err == nil {
		t.Fatal("the test finds redis-server without a PATH")
	}
	_, err := redis.Serve(t.Context(), NewSite("redis", false, netip.IPv6Loopback()))
	if err == nil || !strings.Contains(err.Error(), "apt-get install redis-server") || redis.Missing() == nil {
		t.Error(err)
	}
}

// No two peers share a port, so all can serve on one blade.
func TestPorts(t *testing.T) {
	seen := map[netip.AddrPort]string{}
	for _, p := range All {
		s := NewSite(p.Name, true, netip.IPv6Loopback())
		ports := []netip.AddrPort{s.main()}
		for n := 1; n <= MaxHops; n++ {
			ports = append(ports, s.hop(n))
		}
		for _, at := range ports {
			if other := seen[at]; other != "" {
				t.Errorf("%s and %s share %s", other, p.Name, at)
			}
			seen[at] = p.Name
		}
	}
}

// A wrong result is noticed, and checking does not count.
func TestVerifier(t *testing.T) {
	data := pattern(1000, 1)
	want := incremented(data)
	good := append([]byte(nil), want.want...)
	clock := &Clock{}
	for _, tc := range []struct {
		name  string
		wrong func(b []byte) []byte
	}{
		{"cut", func(b []byte) []byte { return b[:999] }},
		{"first", func(b []byte) []byte { b[0]++; return b }},
		{"last", func(b []byte) []byte { b[999]++; return b }},
		{"middle", func(b []byte) []byte { b[500]++; return b }}, // by the first whole comparison
	} {
		v := incremented(data)
		if err := v.check(clock, tc.wrong(append([]byte(nil), good...)), nil); !errors.Is(err, errWrong) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if err := v.check(clock, good, nil); err != nil {
			t.Errorf("after %s: %v", tc.name, err)
		}
	}
	if clock.Idle() <= 0 || clock.Idle() != 0 {
		t.Error("checking takes no time, or is counted twice")
	}
	if err := want.check(clock, nil, context.Canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("the call's own error: %v", err)
	}
}
