package bench

import (
	be "encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// writeOfNobody counts the copies that reach memory of a write by a node that does not own the region.
func writeOfNobody(t *testing.T, compiled []byte) (copies int) {
	t.Helper()
	prog, err := v1model.Load(compiled)
	if err != nil {
		t.Fatal(err)
	}
	const nodePort, memoryPort = 1, 3
	x, err := interp.New(prog, interp.Config{CPUPort: p4.CPUPort, Sink: unheard{}, Output: func(datapath.Port, []byte) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	be16 := func(v uint16) []byte { return be.BigEndian.AppendUint16(nil, v) }
	exact := func(b []byte) datapath.Match { return datapath.Match{Value: b} }
	node, home := rackaddr.Node(1).As16(), dsmpacket.MachinePrefix(rackaddr.DefaultDSMPrefix, 1).Addr().As16()
	for table, e := range map[string]datapath.Entry{
		"identity": {Match: []datapath.Match{exact(be16(nodePort)), {Value: node[:], PrefixLen: 128}}, Action: &datapath.Action{Name: "known", Params: p4.Known(p4.Node, 1, 0)}},
		"dsm_home": {Match: []datapath.Match{exact(home[:6])}, Action: &datapath.Action{Name: "to_hop", Params: [][]byte{be16(memoryPort)}}},
		"next_hop": {Match: []datapath.Match{exact(be16(memoryPort))}, Action: &datapath.Action{Name: "forward", Params: [][]byte{be16(memoryPort), {5: 1}, {5: 2}}}},
	} {
		e.Table, e.Action.Name = "BifrostIngress."+table, "BifrostIngress."+e.Action.Name
		if err := x.Apply(datapath.Insert, e); err != nil {
			t.Fatal(table, err)
		}
	}
	if err := x.SetRegister("BifrostIngress.rights.switch_state", 1, be.BigEndian.AppendUint64(nil, 1)); err != nil { // packets pass
		t.Fatal(err)
	}
	header := dsmpacket.Header{Kind: dsmpacket.Request, Request: 7, Length: 8}
	to := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 0x40000).With(dsmpacket.OpWrite).Addr()
	f := frame.UDP6{
		HopLimit: 64, Src: netip.AddrPortFrom(rackaddr.Node(1), rackaddr.PortDSM), Dst: netip.AddrPortFrom(to, rackaddr.PortDSM), Payload: header.Append(nil),
	}.Append(nil)
	x.Process(nodePort, f, func(port datapath.Port, _ []byte) {
		if port == memoryPort {
			copies++
		}
	})
	return copies
}

// unheard hears nothing of packets and digests.
type unheard struct{}

func (unheard) PacketIn([]byte)        {}
func (unheard) Digest(datapath.Digest) {}
func (unheard) Idle(datapath.Entry)    {}

// The program that is compared with judges no rights, and the switch's own does.
func TestWithoutRights(t *testing.T) {
	unjudged, err := withoutRights(p4.JSON)
	if err != nil {
		t.Fatal(err)
	}
	if n := writeOfNobody(t, unjudged); n != 1 {
		t.Errorf("a write that nobody judges reached memory %d times, want once", n)
	}
	if n := writeOfNobody(t, p4.JSON); n != 0 {
		t.Errorf("a write of what is not the node's reached memory %d times", n)
	}
	for _, bad := range [][]byte{unjudged, []byte(`{"pipelines":[{"conditionals":[{}, 7]}, 7]}`)} {
		if _, err := withoutRights(bad); !errors.Is(err, errNotOnce) {
			t.Errorf("a program without the condition: %v", err)
		}
	}
	if _, err := withoutRights([]byte("{")); err == nil || !strings.Contains(err.Error(), "the switch's program") {
		t.Errorf("no program: %v", err)
	}
}
