package gatekeeper

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// testBlade is a blade at a switch port, with the daemon's end of the control
// protocol.
type testBlade struct {
	r    *rack
	port uint16
	mac  frame.MAC
	addr netip.Addr // link-local until it is welcome
	peer *control.Peer
	boot uint64
	name string
	// began is that of the first rack that it belonged to.
	began uint64
	// What it answers to the Gatekeeper's commands, and what it was told.
	regions   []control.RegionID
	mute      bool          // it answers no commands
	listing   time.Duration // how long a page of its regions takes
	reclaimed []control.RegionID
	tokens    uint64
	// Of a memory blade with ledgers: its birth number, what it says that it keeps, what it
	// answers to commands about them, and those that it was told.
	birth   uint64
	kept    []control.Ledger
	code    fault.Code
	batches []control.BatchOf // whose they are, by the Gatekeeper's word
	granted []control.LedgerGrant
	deleted []control.LedgerDelete

	unfencing bool                        // it answers no fences
	fenced    []control.Fence             // what it was told, under mu
	unsettled control.Fenced              // what it answers to that
	refusing  map[control.Kind]fault.Code // what it answers with an error, under mu

	tap     atomic.Pointer[func(frame []byte)] // takes what arrives, if set
	mu      sync.Mutex
	arrived [][]byte
}

// plug attaches a blade to a port.
func (r *rack) plug(port uint16) *testBlade {
	r.t.Helper()
	b := &testBlade{
		r: r, port: port, mac: frame.MAC{2, 0, 0, 0, 0, byte(port)}, boot: 1000 + uint64(port), birth: 7,
		addr: netip.MustParseAddr(fmt.Sprintf("fe80::%x", port)),
	}
	b.peer = control.NewPeer(control.PeerConfig{Boot: b.boot, Follow: true})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blades[port] = b
	b.attach()
	return b
}

func (b *testBlade) attach() {
	if err := b.r.sw.Attach(datapath.Port(b.port), func(f []byte) {
		b.r.frames.Add(1)
		if tap := b.tap.Load(); tap != nil {
			(*tap)(f)
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.obey(f) {
			return
		}
		b.arrived = append(b.arrived, bytes.Clone(f))
	}); err != nil {
		b.r.t.Fatal(err)
	}
}

// obey answers the Gatekeeper's commands to fence at once, as a daemon does;
// other commands wait for converse. The caller holds mu.
func (b *testBlade) obey(f []byte) bool {
	u, err := frame.ParseUDP6(f)
	if err != nil || u.Dst.Port() != rackaddr.PortControl {
		return false
	}
	m, err := control.Parse(u.Payload)
	if err != nil || m.Reply {
		return false
	}
	var body []byte
	if code := b.refusing[m.Kind]; code != fault.OK {
		m.Reply, m.Status, m.Floor, m.Body = true, code, 0, []byte("no")
		b.reply(u, m)
		return true
	}
	switch m.Kind {
	case control.KindFence:
		body, _ = json.Marshal(b.unsettled)
		if b.unfencing {
			return true
		}
		var told control.Fence
		if err := m.Decode(&told); err != nil {
			b.r.t.Error(err)
		}
		b.fenced = append(b.fenced, told)
	default:
		return false
	}
	m.Reply, m.Floor, m.Body = true, 0, body
	b.reply(u, m)
	return true
}

// reply answers a command.
func (b *testBlade) reply(u frame.UDP6, m control.Message) {
	answer := frame.UDP6{
		SrcMAC: b.mac, DstMAC: frame.MAC{2, 0xb1, 0xf0, 0, 0, 1}, Src: u.Dst, Dst: u.Src, Payload: m.Append(nil),
	}.Append(nil)
	go b.r.sw.Input(datapath.Port(b.port), answer) // the switch is busy with us
}

// take returns the frames that have arrived for the blade, except for control
// packets, which are converse's.
func (b *testBlade) take() []frame.UDP6 {
	b.r.t.Helper()
	b.r.settle()
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []frame.UDP6
	var control [][]byte
	for _, f := range b.arrived {
		u, err := frame.ParseUDP6(f)
		if err != nil {
			b.r.t.Fatalf("port %d got a bad frame: %v", b.port, err)
		}
		if u.DstMAC != b.mac {
			b.r.t.Fatalf("port %d got a frame for %s", b.port, u.DstMAC)
		}
		if u.Dst.Port() == rackaddr.PortControl {
			control = append(control, f)
			continue
		}
		out = append(out, u)
	}
	b.arrived = control
	return out
}

// send puts a datagram onto the blade's link and waits until all is quiet.
func (b *testBlade) send(src, dst netip.Addr, port uint16, payload []byte) {
	b.r.sw.Input(datapath.Port(b.port), frame.UDP6{
		SrcMAC: b.mac, DstMAC: frame.MAC{2, 0xb1, 0xf0, 0, 0, 1},
		Src: netip.AddrPortFrom(src, port), Dst: netip.AddrPortFrom(dst, port), Payload: payload,
	}.Append(nil))
	b.r.settle()
}

// ask sends a control request and returns the reply.
func (b *testBlade) ask(kind control.Kind, body, reply any) error {
	b.r.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		b.r.t.Fatal(err)
	}
	id, err := b.peer.Ask(time.Now(), kind, data)
	if err != nil {
		b.r.t.Fatal(err)
	}
	for _, m := range b.converse() {
		if m.ID != id {
			continue
		}
		if m.Status != fault.OK {
			return fault.Remote(m.Status, kind.String(), "%s", m.Body)
		}
		if reply != nil {
			return json.Unmarshal(m.Body, reply)
		}
		return nil
	}
	return fmt.Errorf("no reply to %s", kind)
}

// converse exchanges control packets until there are no more, answers the
// Gatekeeper's commands, and returns the replies to our requests.
func (b *testBlade) converse() (replies []control.Message) {
	for {
		ready := b.peer.Ready()
		for _, d := range ready.Send {
			b.send(b.addr, rackaddr.Gatekeeper, rackaddr.PortControl, d)
		}
		replies = append(replies, ready.Replies...)
		for _, m := range ready.Requests {
			b.command(m)
		}
		b.r.settle()
		b.mu.Lock()
		var rest [][]byte
		n := 0
		for _, f := range b.arrived {
			u, err := frame.ParseUDP6(f)
			if err != nil || u.Dst.Port() != rackaddr.PortControl {
				rest = append(rest, f)
				continue
			}
			n++
			_ = b.peer.Input(u.Payload)
		}
		b.arrived = rest
		b.mu.Unlock()
		if n == 0 && len(ready.Send)+len(ready.Requests) == 0 {
			return replies
		}
	}
}

// command carries out a command of the Gatekeeper's.
func (b *testBlade) command(m control.Message) {
	if b.mute {
		b.peer.Forget(m)
		return
	}
	var body any
	switch m.Kind {
	case control.KindReclaim:
		var r control.Reclaim
		if err := m.Decode(&r); err != nil {
			b.r.t.Error(err)
		}
		b.reclaimed = append(b.reclaimed, r.Regions...)
	case control.KindRegions:
		var q control.Regions
		if err := m.Decode(&q); err != nil {
			b.r.t.Error(err)
		}
		<-time.After(b.listing)
		page := control.RegionList{}
		if rest := b.regions[q.From:]; len(rest) > 2 { // small pages, so that there are some
			page.Regions, page.Next = rest[:2], q.From+2
		} else {
			page.Regions = rest
		}
		body = page
	case control.KindGrant:
		var g control.Grant
		if err := m.Decode(&g); err != nil {
			b.r.t.Error(err)
		}
		b.batches = append(b.batches, g.Batches...)
	case control.KindLedgers:
		body = control.LedgerList{Birth: b.birth, Ledgers: b.kept}
	case control.KindLedgerGrant:
		var q control.LedgerGrant
		if err := m.Decode(&q); err != nil {
			b.r.t.Error(err)
		}
		b.granted = append(b.granted, q)
		body = control.LedgerAnswer{Outcome: control.Outcome{Code: b.code}}
	case control.KindLedgerDelete:
		var q control.LedgerDelete
		if err := m.Decode(&q); err != nil {
			b.r.t.Error(err)
		}
		b.deleted = append(b.deleted, q)
		body = control.LedgerAnswer{Outcome: control.Outcome{Code: b.code}}
	}
	data, err := json.Marshal(body)
	if err != nil {
		b.r.t.Error(err)
	}
	b.peer.Answer(m, fault.OK, data)
}

// hello registers the blade.
func (b *testBlade) hello(name, kind string) control.Welcome {
	b.r.t.Helper()
	var w control.Welcome
	if err := b.ask(control.KindHello, control.Hello{Blade: name, Kind: kind, MAC: b.mac.String(), Capacity: 1 << 30, Boot: b.boot, Birth: b.birth}, &w); err != nil {
		b.r.t.Fatal(err)
	}
	b.addr, b.name = w.Address, name
	if b.began == 0 {
		b.began = w.Began
	}
	return w
}
