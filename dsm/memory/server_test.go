package memory

import (
	"bytes"
	"context"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const prefix, machine = rackaddr.DefaultDSMPrefix, 3

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bench is a server and a bare socket of a node, joined by a router.
type bench struct {
	t      testing.TB
	server *Server
	host   *wire.Host
	peer   *wire.Host // has the socket
	conn   netio.Conn
	stop   func() // ends the server and waits for it
	next   uint64
	slot   uint32 // of a region, counted from 0
}

func newBench(t testing.TB, capacity uint64) *bench {
	t.Helper()
	n := wire.New(wire.Config{})
	n.Connect(n.Router())
	blade, err := n.AddHost(wire.HostConfig{Name: "m3", Port: 1, Address: rackaddr.Blade(1)})
	must(t, err)
	node, err := n.AddHost(wire.HostConfig{Name: "c1", Port: 2, Address: rackaddr.Blade(2)})
	must(t, err)
	must(t, node.AddAddress(rackaddr.Node(1)))
	b := &bench{t: t, host: blade, peer: node}
	b.conn, err = node.ListenUDP(netip.AddrPortFrom(rackaddr.Node(1), rackaddr.PortDSM))
	must(t, err)
	t.Cleanup(func() { b.conn.Close() })
	b.start(Config{Stack: blade, Prefix: prefix, Machine: machine, Capacity: capacity, Ledgers: LedgerConfig{Space: 4096, Birth: testBirth}})
	t.Cleanup(func() { b.stop() })
	return b
}

func (b *bench) start(cfg Config) {
	b.t.Helper()
	var err error
	b.server, err = NewServer(cfg)
	must(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.server.Run(ctx) }()
	b.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
		b.stop = func() {}
	}
}

// send sends a request with the next id.
func (b *bench) send(to dsmpacket.Pointer, length uint64, data []byte) {
	b.t.Helper()
	b.next++
	h := dsmpacket.Header{Kind: dsmpacket.Request, Request: b.next, Floor: b.next, Incarnation: 1, Length: length}
	b.raw(to, append(h.Append(nil), data...))
}

func (b *bench) raw(to dsmpacket.Pointer, datagram []byte) {
	b.t.Helper()
	_, err := b.conn.WriteBatch([]netio.Message{{Buf: datagram, Remote: netip.AddrPortFrom(to.Addr(), rackaddr.PortDSM)}})
	must(b.t, err)
}

// receive returns the next reply and where it came from.
func (b *bench) receive() (dsmpacket.Pointer, dsmpacket.Header, []byte) {
	b.t.Helper()
	m := []netio.Message{{Buf: make([]byte, netio.MaxDatagram)}}
	must(b.t, b.conn.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err := b.conn.ReadBatch(m)
	must(b.t, err)
	h, data, err := dsmpacket.Parse(m[0].Buf)
	must(b.t, err)
	if m[0].Remote.Port() != rackaddr.PortDSM {
		b.t.Errorf("reply from port %d", m[0].Remote.Port())
	}
	return dsmpacket.FromAddr(m[0].Remote.Addr()), h, data
}

func (b *bench) alloc(size uint64) dsmpacket.Region {
	b.t.Helper()
	b.slot++
	must(b.t, b.server.Grant(control.Grant{Batches: []control.BatchOf{{Batch: 1 + b.slot/dsmpacket.BatchSlots, Node: rackaddr.Node(1)}}}))
	b.send(dsmpacket.Make(prefix, machine, dsmpacket.IDOf(dsmpacket.BatchSlots+b.slot, b.server.cfg.Floor+1)).With(dsmpacket.OpAlloc), size, nil)
	from, h, _ := b.receive()
	reg, err := dsmpacket.RegionOf(from, h.Length)
	must(b.t, err)
	if from.Op() != dsmpacket.OpAlloc || h.Status != fault.OK || h.Kind != dsmpacket.Reply {
		b.t.Fatalf("alloc of %d bytes: %s, %+v", size, from, h)
	}
	return reg
}

// A reply comes from the address that its request was sent to; an alloc's from
// the new pointer, so that the switch reads the region off the header.
func TestRepliesComeFromTheirPointers(t *testing.T) {
	b := newBench(t, 1<<20)
	reg := b.alloc(5000)
	if reg.Class != 13 || reg.Base.Machine() != machine || reg.Base.Prefix() != prefix {
		t.Fatalf("region %v", reg)
	}
	for _, to := range []dsmpacket.Pointer{
		reg.Base.Add(8).With(dsmpacket.OpWrite), reg.Base.Add(8).With(dsmpacket.OpRead),
		dsmpacket.Make(prefix, machine, 0).With(dsmpacket.OpSettle), reg.Base.With(dsmpacket.OpFree),
	} {
		data := []byte(nil)
		if to.Op() == dsmpacket.OpWrite {
			data = []byte("four")
		}
		b.send(to, 4, data)
		from, h, got := b.receive()
		if from != to || h.Request != b.next {
			t.Errorf("sent to %s, answered from %s: %+v", to, from, h)
		}
		if to.Op() == dsmpacket.OpRead && !bytes.Equal(got, []byte("four")) {
			t.Errorf("read %q", got)
		}
	}
}

// TestReceiveIntoRegion: large writes that wait are received where they belong, and what is refused,
// known or late changes nothing.
func TestReceiveIntoRegion(t *testing.T) {
	b := newBench(t, 4<<20)
	reg := b.alloc(1 << 20)
	const n, size = 15, 60 << 10
	write := func(i int, id uint64, fill byte) {
		h := dsmpacket.Header{Kind: dsmpacket.Request, Request: id, Floor: 3, Incarnation: 1, Length: size}
		b.raw(reg.Base.Add(int64(i)*size).With(dsmpacket.OpWrite), append(h.Append(nil), bytes.Repeat([]byte{fill}, size)...))
	}
	// The server takes a batch, and then finds the others waiting.
	b.server.mu.Lock()
	for i := range n {
		write(i, uint64(3+i), byte(1+i))
	}
	write(0, 3, 99) // a duplicate
	write(0, 2, 99) // a late one
	b.raw(reg.Base.Add(1<<20-100).With(dsmpacket.OpWrite), append((&dsmpacket.Header{
		Kind: dsmpacket.Request, Request: 100, Floor: 3, Incarnation: 1, Length: size,
	}).Append(nil), make([]byte, size)...)) // beyond the region
	b.server.mu.Unlock()
	for answered, refused := 0, 0; answered < n+1 || refused < 1; {
		switch _, h, _ := b.receive(); h.Status {
		case fault.OK:
			answered += 1 + int(h.More)
		case fault.BadRequest:
			refused++
		default:
			t.Fatalf("%+v", h)
		}
	}
	content, there := b.server.ReadRegion(reg.Base.ID(), n*size)
	for at := range content {
		if content[at] != byte(1+at/size) {
			t.Fatalf("byte %d is %d", at, content[at])
		}
	}
	if !there {
		t.Error("the region is gone")
	}
	if in := b.server.Metrics().InPlace; in < (n-batch)*size {
		t.Errorf("%d bytes were received in place", in)
	}
}

// What is not a request for this machine is counted, and answered by nobody.
func TestForeignDatagrams(t *testing.T) {
	b := newBench(t, 1<<20)
	at := dsmpacket.Make(prefix, machine, dsmpacket.IDOf(0, 64)).With(dsmpacket.OpRead)
	must(t, b.host.AddLocalPrefix(dsmpacket.MachinePrefix(prefix, machine+1)))
	good := (&dsmpacket.Header{Kind: dsmpacket.Request, Request: 9, Floor: 9, Incarnation: 1, Length: 4}).Append(nil)
	b.raw(at, nil)
	b.raw(at, good[:63])
	b.raw(at, append([]byte{0xff}, good...))
	reply := bytes.Clone(good)
	reply[4], reply[6] = byte(dsmpacket.Reply), ^byte(dsmpacket.Reply)
	b.raw(at, reply)
	b.raw(dsmpacket.Make(prefix, machine+1, 64).With(dsmpacket.OpRead), good)
	b.raw(dsmpacket.FromAddr(rackaddr.Blade(1)), good)
	b.next = 9
	b.alloc(64) // everything before it has been looked at
	m := b.server.Metrics()
	if m.Dropped["malformed"] != 3 || m.Dropped["foreign"] != 3 || m.Done["alloc"] != 1 {
		t.Errorf("%+v", m)
	}
	if r := m.Refused; len(r) != 2 || r[0].Reason != "foreign" || r[0].Packets != 3 || r[1].Packets != 3 || r[0].From != r[1].From || !r[0].From.IsValid() {
		t.Errorf("by sender: %+v", r)
	}
}

// blamed is how many packets of a node were refused for a reason.
func (b *bench) blamed(node netip.Addr, reason string) (n uint64) {
	for _, c := range b.server.Metrics().Refused {
		if c.From == node && c.Reason == reason {
			n += c.Packets
		}
	}
	return n
}

// What is refused is counted by the node that has asked, and by the code of the answer.
func TestRefused(t *testing.T) {
	b := newBench(t, 1<<20)
	b.stop()
	b.start(Config{Stack: b.host, Prefix: prefix, Machine: machine, Capacity: 1 << 20, Limits: store.Limits{Regions: 1}})
	p := b.alloc(64).Base
	for _, c := range []struct {
		to     dsmpacket.Pointer
		length uint64
		want   fault.Code
	}{
		{dsmpacket.Make(prefix, machine, p.ID()+1<<dsmpacket.GenerationBits).With(dsmpacket.OpAlloc), 64, fault.NoSpace}, // a region too many
		{p.Add(4096).With(dsmpacket.OpRead), 4, fault.BadRequest},
		{dsmpacket.Make(prefix, machine, p.ID()+1).With(dsmpacket.OpRead), 4, fault.NotFound},
		{p.With(dsmpacket.OpRead), 65, fault.BadRequest},
		{p.With(dsmpacket.OpFree), 0, fault.OK},
		{p.With(dsmpacket.OpRead), 4, fault.NotFound},
	} {
		before := b.blamed(rackaddr.Node(1), c.want.String())
		b.send(c.to, c.length, nil)
		_, h, _ := b.receive()
		if h.Status != c.want {
			t.Errorf("%v of %d bytes: %v, want %v", c.to.Op(), c.length, h.Status, c.want)
		}
		if got := b.blamed(rackaddr.Node(1), c.want.String()) - before; (got == 1) != (c.want != fault.OK) {
			t.Errorf("%v: counted %d times as %v", c.to.Op(), got, c.want)
		}
	}
	_, err := b.server.Fence(control.Fence{Node: rackaddr.Node(1), Incarnation: 1})
	must(t, err)
	b.send(p.With(dsmpacket.OpRead), 4, nil)
	if _, h, _ := b.receive(); h.Status != fault.Stale || b.blamed(rackaddr.Node(1), fault.Stale.String()) != 1 {
		t.Errorf("of a fenced incarnation: %v, %+v", h.Status, b.server.Metrics().Refused)
	}
}

func TestMetrics(t *testing.T) {
	b := newBench(t, 1<<20)
	p := b.alloc(64).Base
	b.send(p.With(dsmpacket.OpWrite), 3, []byte("abc"))
	b.receive()
	for range 2 {
		b.send(p.With(dsmpacket.OpRead), 64, nil)
		b.receive()
	}
	b.send(p.With(dsmpacket.OpRead), 65, nil)
	b.receive()
	b.raw(p.With(dsmpacket.OpWrite), append((&dsmpacket.Header{Kind: dsmpacket.Request, Request: 2, Floor: 2, Incarnation: 1, Length: 1}).Append(nil), 1))
	b.send(p.With(9), 64, nil)
	b.receive()
	m := b.server.Metrics()
	if m.Done["write"] != 1 || m.Done["read"] != 2 || m.Failed["read"] != 1 || m.Failed["none"] != 1 ||
		m.BytesRead != 128 || m.BytesWritten != 3 || m.Dropped["late"] != 1 || len(m.Refused) == 0 || m.Refused[0].Packets != 2 {
		t.Errorf("%+v", m)
	}
}

// The Gatekeeper's commands, while the server runs and afterwards.
func TestCommands(t *testing.T) {
	b := newBench(t, 1<<30)
	reg := b.alloc(64 << 20)
	b.send(reg.Base.Add(1).With(dsmpacket.OpWrite), 1, []byte{7})
	b.receive()
	b.send(reg.Base.Add(33<<20).With(dsmpacket.OpWrite), 1, []byte{8})
	b.receive()
	l, err := b.server.Regions(control.Regions{})
	if err != nil || len(l.Regions) != 1 || l.Regions[0].Region(prefix, machine) != reg || l.Regions[0].Owner != rackaddr.Node(1) {
		t.Fatalf("%+v, %v", l, err)
	}
	if b.server.Used() != 64<<20 || b.server.Capacity() != 1<<30 {
		t.Errorf("used %d of %d", b.server.Used(), b.server.Capacity())
	}
	for range 2 {
		answer, err := b.server.Reclaim(control.Reclaim{Regions: l.Regions})
		must(t, err)
		if len(answer.Refused) > 0 {
			t.Errorf("reclaim: %+v", answer)
		}
	}
	// What the region left behind is cleaned in the background or at need.
	for range 16 {
		again := b.alloc(64 << 20)
		for _, at := range []int64{1, 33 << 20} {
			b.send(again.Base.Add(at).With(dsmpacket.OpRead), 1, nil)
			if _, _, data := b.receive(); data[0] != 0 {
				t.Errorf("new memory reads %v", data)
			}
		}
	}
	fenced, err := b.server.Fence(control.Fence{Node: rackaddr.Node(1), Incarnation: 1})
	must(t, err)
	if len(fenced.Regions) > 0 || fenced.More {
		t.Errorf("fenced, and all is settled: %+v", fenced)
	}
	b.send(reg.Base.With(dsmpacket.OpRead), 1, nil)
	if _, h, _ := b.receive(); h.Status != fault.Stale {
		t.Errorf("fenced, but %v", h.Status)
	}
	b.stop()
	_, listing := b.server.Regions(control.Regions{})
	_, fencing := b.server.Fence(control.Fence{})
	_, reclaiming := b.server.Reclaim(control.Reclaim{})
	for _, err := range []error{fencing, reclaiming, b.server.KeepUndo(true), listing} {
		if fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("after the end: %v", err)
		}
	}
}

// A server that starts again makes regions of later generations, so old pointers name nothing.
func TestRestart(t *testing.T) {
	b := newBench(t, 1<<20)
	old := b.alloc(64)
	b.stop()
	b.start(Config{Stack: b.host, Prefix: prefix, Machine: machine, Capacity: 1 << 20, Floor: old.Base.ID().Generation()})
	must(t, b.server.Grant(control.Grant{Batches: []control.BatchOf{{Batch: 1, Node: rackaddr.Node(1)}}}))
	b.send(old.Base.With(dsmpacket.OpAlloc), 64, nil)
	if _, h, _ := b.receive(); h.Status != fault.NoSpace || h.Flags != dsmpacket.FlagSlot {
		t.Errorf("a region of an earlier boot, again: %v, flags %#x", h.Status, h.Flags)
	}
	if reg := b.alloc(64); reg.Base.ID().Generation() <= old.Base.ID().Generation() || b.server.Generation() != reg.Base.ID().Generation() {
		t.Errorf("region %v after %v", reg, old)
	}
	b.send(old.Base.With(dsmpacket.OpRead), 1, nil)
	if _, h, _ := b.receive(); h.Status != fault.NotFound {
		t.Errorf("old pointer: %v", h.Status)
	}
}

func TestBadConfigurations(t *testing.T) {
	b := newBench(t, 1<<20)
	if _, err := NewServer(Config{Stack: b.host, Prefix: prefix, Machine: 9, Capacity: 1 << 20}); err == nil {
		t.Error("two servers on one blade's port")
	}
	b.stop()
	for _, capacity := range []uint64{0, 1 << 50} {
		if _, err := NewServer(Config{Stack: b.host, Prefix: prefix, Machine: 9, Capacity: capacity}); err == nil {
			t.Errorf("a capacity of %d bytes", capacity)
		}
	}
}

// FuzzServer sends a server any datagram to any of its addresses. It must go on.
func FuzzServer(f *testing.F) {
	b := newBench(f, 1<<20)
	reg := b.alloc(4096)
	for op := dsmpacket.OpNone; op <= dsmpacket.OpSettle+1; op++ {
		h := dsmpacket.Header{Kind: dsmpacket.Request, Request: 100, Floor: 1, Incarnation: 1, Length: 4}
		to := reg.Base.With(op)
		f.Add(to[6:], append(h.Append(nil), "data"...))
	}
	f.Fuzz(func(t *testing.T, address, datagram []byte) {
		to := dsmpacket.Make(prefix, machine, 0)
		if copy(to[6:], address); len(datagram) > 4096 {
			return
		}
		b.t = t
		b.raw(to, datagram)
		h := dsmpacket.Header{Kind: dsmpacket.Request, Request: 1, Floor: 1, Incarnation: 1 << 31, Length: 1}
		b.raw(reg.Base.With(dsmpacket.OpRead), h.Append(nil))
		for { // the answer to the good request, after whatever the other one got
			if _, h, _ := b.receive(); h.Incarnation == 1<<31 {
				return
			}
		}
	})
}

// TestFillInLaterEpoch: a copy that is told to fill another one in an epoch that has not begun
// there does not begin: the epoch's begin would end the filling in the store only, and the
// new copy would lack what is written then.
func TestFillInLaterEpoch(t *testing.T) {
	b := newBench(t, 1<<20)
	must(t, b.server.Become(control.Mirror{Epoch: 2, Incarnation: 1, Members: 2}))
	q := control.Fill{Token: 1, Source: true, Epoch: 3, Incarnation: 2, From: rackaddr.Blade(1), To: rackaddr.Blade(2), Rate: 1 << 20}
	if err := b.server.Fill(q); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("filling in epoch 3, in epoch 2: %v", err)
	}
	must(t, b.server.Become(control.Mirror{Epoch: 3, Incarnation: 1, Members: 1}))
	must(t, b.server.Fill(q))
}

// TestCompletionTimesOut: a copy cannot be completed, since its blade cannot be heard. The source takes requests again, though
// nobody tells it anything more: the Gatekeeper may have failed.
func TestCompletionTimesOut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t, 1<<20)
		b.write(1, 2)
		reg := b.alloc(64)
		must(t, b.server.Become(control.Mirror{Epoch: 1, Incarnation: b.server.store.Mirror().Incarnation, Members: 1}))
		must(t, b.server.Fill(control.Fill{Token: 1, Source: true, Epoch: 1, Incarnation: 2, From: rackaddr.Blade(1), To: rackaddr.Blade(2), Rate: 1 << 20}))
		err := b.server.Complete(t.Context(), control.Complete{Token: 1, Mirror: control.Mirror{Epoch: 2, Members: 2}})
		if fault.CodeOf(err) != fault.Deadline {
			t.Fatalf("completed: %v", err)
		}
		b.send(reg.Base.With(dsmpacket.OpWrite), 3, []byte("abc"))
		if _, h, _ := b.receive(); h.Status != fault.OK || h.Mirror.Members != 1 {
			t.Errorf("a write is answered with %+v", h)
		}
		b.write(2, 3)
	})
}

// TestGrantWhileFilled: whose batches are is told to a copy that is being filled at once. The Gatekeeper says it in each welcome, and a daemon that
// cannot heed that ends, with all its memory.
func TestGrantWhileFilled(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t, 1<<20)
		must(t, b.server.Fill(control.Fill{Token: 7, Incarnation: 1, From: rackaddr.Blade(2), To: rackaddr.Blade(1), Rate: 1 << 20}))
		began := time.Now()
		if err := b.server.Grant(control.Grant{Batches: []control.BatchOf{{Batch: 1, Node: rackaddr.Node(1)}}}); err != nil || time.Since(began) > 0 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}
