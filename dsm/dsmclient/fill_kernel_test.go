package dsmclient_test

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/netio/linux"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// fillPair starts two memory servers on the kernel's sockets, at both ends of a cable.
func fillPair(t testing.TB) (source, target *memory.Server) {
	t.Helper()
	apart(t, func() {
		one, two, enter := cable(t)
		at := func(s *linux.Stack, own, other netip.Addr) *memory.Server {
			enter(s)
			link, err := netlink.LinkByName("eth0")
			must(t, err)
			must(t, netlink.RouteAdd(&netlink.Route{
				LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: other.AsSlice(), Mask: net.CIDRMask(128, 128)}, Gw: net.ParseIP("fe80::1"),
			}))
			must(t, s.AddAddress(own))
			return serve(t, s)
		}
		source, target = at(one, rackaddr.Blade(1), rackaddr.Blade(2)), at(two, rackaddr.Blade(2), rackaddr.Blade(1))
	})
	return source, target
}

// region makes a region at a server, and puts a pattern into it.
func region(t testing.TB, s *memory.Server, request, offset uint64, content []byte) {
	t.Helper()
	must(t, s.AllocAt(control.AllocAt{Node: rackaddr.Node(1), Incarnation: 1, Request: request, Floor: 1, Size: uint64(len(content)), Offset: offset}))
	poke(t, s, offset, content)
}

func poke(t testing.TB, s *memory.Server, offset uint64, content []byte) {
	t.Helper()
	for len(content) > 0 {
		n := min(len(content), control.MaxContent)
		must(t, s.Poke(control.Content{Offset: offset, Data: content[:n]}))
		offset, content = offset+uint64(n), content[n:]
	}
}

// fillFrom fills the target, while work is done again and again, and returns how long it took.
func fillFrom(t testing.TB, source, target *memory.Server, attempt uint32, rate uint64, work func()) time.Duration {
	t.Helper()
	q := control.Fill{Token: uint64(attempt), Epoch: attempt - 1, Incarnation: attempt, From: rackaddr.Blade(1), To: rackaddr.Blade(2), Rate: rate}
	began := time.Now()
	must(t, target.Fill(q))
	q.Source = true
	must(t, source.Fill(q))
	for !source.FillProgress().Ready {
		work()
	}
	must(t, source.Complete(context.Background(), control.Complete{Token: q.Token, Mirror: control.Mirror{Epoch: attempt, Members: 2}}))
	return time.Since(began)
}

// TestFillOverKernel: a copy is filled over the kernel's sockets while the source changes, and
// holds the same.
func TestFillOverKernel(t *testing.T) {
	source, target := fillPair(t)
	const base = 1 << 40
	want := bytes.Repeat([]byte("bifrost!"), 16<<20/8)
	region(t, source, 1, base, want)
	n := 0
	fillFrom(t, source, target, 1, 256<<20, func() {
		at := n * 65537 % (len(want) - 100)
		copy(want[at:], bytes.Repeat([]byte{byte(n)}, 100))
		poke(t, source, base+uint64(at), want[at:at+100])
		n++
	})
	a, err := source.Regions(control.Regions{Max: 10})
	must(t, err)
	b, err := target.Regions(control.Regions{Max: 10})
	must(t, err)
	if len(a.Regions) != 1 || !slices.Equal(a.Regions, b.Regions) {
		t.Fatalf("regions %+v, %+v", a, b)
	}
	for at := 0; at < len(want); at += control.MaxContent {
		part := want[at:min(len(want), at+control.MaxContent)]
		got, err := target.Peek(control.Span{Offset: base + uint64(at), Length: uint64(len(part))})
		if err != nil || !bytes.Equal(got.Data, part) {
			t.Fatalf("the copy differs at %d: %v (after %d changes)", at, err, n)
		}
	}
}

// BenchmarkCableFill fills a copy of 256 MiB without a limit: how fast it can be.
func BenchmarkCableFill(b *testing.B) {
	source, target := fillPair(b)
	const size, regions = 64 << 20, 4
	content := bytes.Repeat([]byte("bifrost!"), size/8)
	for i := range uint64(regions) {
		region(b, source, i+1, (i+1)<<40, content)
	}
	b.SetBytes(size * regions)
	for i := 0; b.Loop(); i++ {
		fillFrom(b, source, target, uint32(i+1), 0, func() { <-time.After(time.Millisecond) }) //nolint:gosec // few
	}
}
