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

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/netio/linux"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// filler is a memory server that fills another one, and a node's socket beside it.
type filler struct {
	source, target *memory.Server
	conn           netio.Conn
	requests       uint64
}

// fillPair starts two memory servers on the kernel's sockets, at both ends of a cable.
func fillPair(t testing.TB) (f filler) {
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
		f.target = at(two, rackaddr.Blade(2), rackaddr.Blade(1))
		f.source = at(one, rackaddr.Blade(1), rackaddr.Blade(2))
		must(t, one.AddAddress(rackaddr.Node(2)))
		var err error
		f.conn, err = one.ListenUDP(netip.AddrPortFrom(rackaddr.Node(2), 0))
		must(t, err)
	})
	t.Cleanup(func() { f.conn.Close() })
	return f
}

// region makes a region at the source, and puts a pattern into it.
func (f *filler) region(t testing.TB, id dsmpacket.RegionID, content []byte) {
	t.Helper()
	must(t, f.source.Grant(control.Grant{Batches: []control.BatchOf{{Batch: id.Batch(), Node: rackaddr.Node(2)}}}))
	f.send(t, dsmpacket.Make(prefix, 1, id).With(dsmpacket.OpAlloc), uint64(len(content)), nil)
	f.write(t, dsmpacket.Make(prefix, 1, id), content)
}

func (f *filler) write(t testing.TB, p dsmpacket.Pointer, content []byte) {
	t.Helper()
	for part := range slices.Chunk(content, 8<<10) {
		f.send(t, p.With(dsmpacket.OpWrite), uint64(len(part)), part)
		p = p.Add(int64(len(part)))
	}
}

// send has the source carry out a request.
func (f *filler) send(t testing.TB, to dsmpacket.Pointer, length uint64, data []byte) {
	t.Helper()
	f.requests++
	h := dsmpacket.Header{Kind: dsmpacket.Request, Request: f.requests, Floor: f.requests, Incarnation: 1, Length: length}
	_, err := f.conn.WriteBatch([]netio.Message{{Buf: append(h.Append(nil), data...), Remote: netip.AddrPortFrom(to.Addr(), rackaddr.PortDSM)}})
	must(t, err)
	in := []netio.Message{{Buf: make([]byte, netio.MaxDatagram)}}
	must(t, f.conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = f.conn.ReadBatch(in)
	must(t, err)
	if h, _, err := dsmpacket.Parse(in[0].Buf); err != nil || h.Status != fault.OK {
		t.Fatalf("%+v, %v", h, err)
	}
}

// fill fills the target, while work is done again and again, and returns how long it took.
func (f *filler) fill(t testing.TB, attempt uint32, rate uint64, work func()) time.Duration {
	t.Helper()
	q := control.Fill{Token: uint64(attempt), Epoch: attempt - 1, Incarnation: attempt, From: rackaddr.Blade(1), To: rackaddr.Blade(2), Rate: rate}
	began := time.Now()
	must(t, f.target.Fill(q))
	q.Source = true
	must(t, f.source.Fill(q))
	for !f.source.FillProgress().Ready {
		work()
	}
	must(t, f.source.Complete(context.Background(), control.Complete{Token: q.Token, Mirror: control.Mirror{Epoch: attempt, Members: 2}}))
	return time.Since(began)
}

// TestFillOverKernel: a copy is filled over the kernel's sockets while the source changes, and
// holds the same.
func TestFillOverKernel(t *testing.T) {
	f := fillPair(t)
	id := dsmpacket.IDOf(dsmpacket.BatchSlots, 1)
	want := bytes.Repeat([]byte("bifrost!"), 16<<20/8)
	f.region(t, id, want)
	n := 0
	f.fill(t, 1, 256<<20, func() {
		at := n * 65537 % (len(want) - 100)
		copy(want[at:], bytes.Repeat([]byte{byte(n)}, 100))
		f.write(t, dsmpacket.Make(prefix, 1, id).Add(int64(at)), want[at:at+100])
		n++
	})
	a, err := f.source.Regions(control.Regions{Max: 10})
	must(t, err)
	b, err := f.target.Regions(control.Regions{Max: 10})
	must(t, err)
	if len(a.Regions) != 1 || !slices.Equal(a.Regions, b.Regions) {
		t.Fatalf("regions %+v, %+v", a, b)
	}
	if got, there := f.target.ReadRegion(id, uint64(len(want))); !there || !bytes.Equal(got, want) {
		t.Fatalf("the copy differs after %d changes", n)
	}
}

// BenchmarkCableFill fills a copy of 256 MiB without a limit: how fast it can be.
func BenchmarkCableFill(b *testing.B) {
	f := fillPair(b)
	const size, regions = 64 << 20, 4
	content := bytes.Repeat([]byte("bifrost!"), size/8)
	for i := range uint64(regions) {
		f.region(b, dsmpacket.IDOf(dsmpacket.BatchSlots+uint32(i), 1), content) //nolint:gosec // few
	}
	b.SetBytes(size * regions)
	for i := 0; b.Loop(); i++ {
		f.fill(b, uint32(i+1), 0, func() { <-time.After(time.Millisecond) }) //nolint:gosec // few
	}
}
