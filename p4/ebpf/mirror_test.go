package ebpf

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/datapath"
)

// TestCopiesOfARequest: both executors send a change to the machine's two copies, each with
// its own Ethernet address, and a read or an allocation to the first one only.
func TestCopiesOfARequest(t *testing.T) {
	p := newPair(t, bifrost(t), p4.CPUPort)
	p.unordered = true
	node := rackaddr.Node(1)
	pointer := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(99, 1))
	home := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 0).Addr().As16()
	who := node.As16()
	two := func(n uint16) []byte { return []byte{byte(n >> 8), byte(n)} }
	mac := func(n byte) []byte { return []byte{2, 0, 0, 0, 0, n} }
	insert := func(table, action string, params [][]byte, match ...datapath.Match) {
		t.Helper()
		if !p.apply(t, datapath.Insert, datapath.Entry{Table: table, Match: match, Action: &datapath.Action{Name: action, Params: params}}) {
			t.Fatalf("%s is refused", table)
		}
	}
	exact := func(b []byte) datapath.Match { return datapath.Match{Value: b} }
	insert("BifrostIngress.identity", "BifrostIngress.known", p4.Known(p4.Node, 1, 1), exact(two(1)), datapath.Match{Value: who[:], PrefixLen: 128})
	insert("BifrostIngress.dsm_home", "BifrostIngress.to_copies", [][]byte{two(3), two(7)}, exact(home[:6]))
	insert("BifrostIngress.rights.control_rule", "BifrostIngress.rights.allocates", nil, exact(two(1)), exact([]byte{1}), exact(two(1)))
	p.both(t, func(x datapath.Datapath) error { // the node owns the region, and the registers are as they should be
		word := []byte{2: 1, 4: 0x10, 6: 0}
		return errors.Join(x.SetRegister("BifrostIngress.rights.words", 99, word), x.SetRegister("BifrostIngress.rights.switch_state", 1, []byte{7: 1}))
	})
	for hop := range byte(2) {
		insert("BifrostIngress.next_hop", "BifrostIngress.forward", [][]byte{two(uint16(hop) + 2), mac(hop + 2), mac(9)}, exact(two(uint16(hop)+3)))
		insert("BifrostEgress.replica", "BifrostEgress.readdress", [][]byte{mac(hop + 2), mac(9)}, exact(two(uint16(hop)+3)))
	}
	p.both(t, func(x datapath.Datapath) error {
		return x.Multicast(7, []datapath.Replica{{Port: 2, Instance: 3}, {Port: 3, Instance: 4}})
	})
	for _, c := range []struct {
		op     dsmpacket.Op
		copies []string // ports
	}{
		{dsmpacket.OpRead, []string{"2"}}, {dsmpacket.OpAlloc, []string{"2", "3"}}, {dsmpacket.OpWrite, []string{"2", "3"}}, {dsmpacket.OpSettle, []string{"2", "3"}},
	} {
		h := dsmpacket.Header{Kind: dsmpacket.Request, Request: 1, Floor: 1, Incarnation: 1, Length: 8}
		udp := frame.UDP6{
			DstMAC: frame.MAC(mac(8)), SrcMAC: frame.MAC(mac(1)), HopLimit: 64,
			Src: netip.AddrPortFrom(node, rackaddr.PortDSM), Dst: netip.AddrPortFrom(pointer.With(c.op).Addr(), rackaddr.PortDSM), Payload: append(h.Append(nil), make([]byte, 8)...),
		}
		k, g, differ := p.differs(1, udp.Append(nil))
		if differ {
			t.Errorf("%v: the kernel sends %q, Go %q", c.op, k, g)
		}
		var ports []string
		for i, line := range g {
			port, rest, _ := strings.Cut(strings.TrimPrefix(line, "out "), ": ")
			ports = append(ports, port)
			if want := "02000000000" + port; !strings.HasPrefix(rest, want) {
				t.Errorf("%v: copy %d goes to %.12s, want %s", c.op, i, rest, want)
			}
		}
		if !slices.Equal(ports, c.copies) {
			t.Errorf("%v leaves at ports %v, want %v", c.op, ports, c.copies)
		}
	}
}
