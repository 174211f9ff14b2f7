//go:build linux

package difftest

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/ebpf"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

// To run a difference again: go test ./p4/difftest -run TestKernel_Differential -seed N -kernel-rounds 1
var (
	kernelRounds = flag.Int("kernel-rounds", 10, "seeds to try with the kernel's executor, each with entries of its own and 200 packets")
	kernelSteps  = flag.Int("kernel-rights-steps", 8_000, "packets and operations that are compared with the model of rights")
)

// ofKernel is a figure, or fewer in short tests.
func ofKernel(n, short int) int {
	if testing.Short() {
		return min(n, short)
	}
	return n
}

// onBoth has the program on both executors.
func onBoth(t testing.TB, cfg ebpf.Config) (*compare.Pair, *ebpf.Executor) {
	t.Helper()
	privilege.Need(t)
	p := &compare.Pair{}
	cfg.CPUPort, cfg.Sink, cfg.Copies, cfg.Stale = p4.CPUPort, &p.K, 256, true
	prog := bifrost(t)
	x, err := ebpf.New(prog, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	p.Start(t, prog, x, p4.CPUPort)
	return p, x
}

// TestKernel_Differential: both executors do the same with packets that somebody made who knows the program, and with those that are derived from it,
// which meet other corners.
func TestKernel_Differential(t *testing.T) {
	for n := range ofKernel(*kernelRounds, 3) {
		s := *seed + uint64(n)
		replay := fmt.Sprintf("go test ./p4/difftest -run TestKernel_Differential -seed %d -kernel-rounds 1", s)
		p, _ := onBoth(t, ebpf.Config{})
		m := Bifrost{rand.New(rand.NewPCG(s, 0))}
		var entries []datapath.Entry
		for range 200 {
			switch e := m.Entry(); m.IntN(8) {
			case 0:
				p.Update(t, datapath.Delete, e)
			case 1:
				p.Update(t, datapath.Modify, e)
			default:
				if p.Update(t, datapath.Insert, e) {
					entries = append(entries, e)
				}
			}
		}
		for range 200 {
			in := datapath.Port(m.Pick(1, 2, 3, 4, 1, 2, 3, 4, p4.CPUPort))
			p.Check(t, in, m.Packet(in), replay)
		}
		p.Counters(t, entries, replay)
		derived, _ := onBoth(t, ebpf.Config{})
		derived.Derived(t, s, replay)
	}
}

// TestKernel_Real: the same packets on real interfaces, where frames may be of any length.
func TestKernel_Real(t *testing.T) {
	for n := range max(ofKernel(*kernelRounds, 3)/4, 1) {
		s := *seed + uint64(n)
		replay := fmt.Sprintf("go test ./p4/difftest -run TestKernel_Real -seed %d -kernel-rounds 1", s)
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			compare.Namespace(t)
			p, x := onBoth(t, ebpf.Config{})
			b := compare.Lay(t, p, func(port datapath.Port, name string) error { return x.AttachPort(port, name, false) })
			m := Bifrost{rand.New(rand.NewPCG(s, 3))}
			for range 200 {
				b.Update(t, datapath.Insert, m.Entry())
			}
			for range 200 {
				in := datapath.Port(m.Port())
				frame := m.Packet(in)
				if m.IntN(10) == 0 {
					frame = frame[:min(len(frame), compare.Shortest+m.IntN(60))]
				}
				b.Check(t, in, frame, replay)
			}
			b.Quiet(t, replay)
			b.Counters(t, nil, replay)
		})
	}
}

// TestKernel_CopiesOfARequest: both executors send a change to the machine's two copies, each with
// its own Ethernet address, and a read or an allocation to the first one only.
func TestKernel_CopiesOfARequest(t *testing.T) {
	p, _ := onBoth(t, ebpf.Config{})
	p.Unordered = true
	sender := rackaddr.Node(1)
	pointer := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(99, 1))
	home := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 0).Addr().As16()
	who := sender.As16()
	two := func(n uint16) []byte { return []byte{byte(n >> 8), byte(n)} }
	mac := func(n byte) []byte { return []byte{2, 0, 0, 0, 0, n} }
	insert := func(table, action string, params [][]byte, match ...datapath.Match) {
		t.Helper()
		if !p.Update(t, datapath.Insert, datapath.Entry{Table: table, Match: match, Action: &datapath.Action{Name: action, Params: params}}) {
			t.Fatalf("%s is refused", table)
		}
	}
	exact := func(b []byte) datapath.Match { return datapath.Match{Value: b} }
	insert("BifrostIngress.identity", "BifrostIngress.known", p4.Known(p4.Node, 1, 1), exact(two(1)), datapath.Match{Value: who[:], PrefixLen: 128})
	insert("BifrostIngress.dsm_home", "BifrostIngress.to_copies", [][]byte{two(3), two(7)}, exact(home[:6]))
	insert("BifrostIngress.rights.control_rule", "BifrostIngress.rights.allocates", [][]byte{{1}}, exact(two(1)), exact([]byte{1}), exact(two(1)))
	p.Both(t, func(x datapath.Datapath) error { // the node owns the region, and the registers are as they should be
		word := []byte{2: 1, 4: 0x10, 6: 0}
		return errors.Join(x.SetRegister("BifrostIngress.rights.words", 99, word), x.SetRegister("BifrostIngress.rights.switch_state", 1, []byte{7: 1}))
	})
	for hop := range byte(2) {
		insert("BifrostIngress.next_hop", "BifrostIngress.forward", [][]byte{two(uint16(hop) + 2), mac(hop + 2), mac(9)}, exact(two(uint16(hop)+3)))
		insert("BifrostEgress.replica", "BifrostEgress.readdress", [][]byte{mac(hop + 2), mac(9)}, exact(two(uint16(hop)+3)))
	}
	p.Both(t, func(x datapath.Datapath) error {
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
			Src: netip.AddrPortFrom(sender, rackaddr.PortDSM), Dst: netip.AddrPortFrom(pointer.With(c.op).Addr(), rackaddr.PortDSM), Payload: append(h.Append(nil), make([]byte, 8)...),
		}
		k, g, differ := p.Differs(1, udp.Append(nil))
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
