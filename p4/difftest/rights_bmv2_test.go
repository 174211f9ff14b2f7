package difftest

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/rights"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// onBMv2 is bmv2 as a Target. P4Runtime reads no registers of it, so the Gatekeeper's operations read them.
type onBMv2 struct {
	*BMv2
	counts   map[datapath.Port][]datapath.Counts // verdicts of each port
	election uint64                              // the highest that an operation has named
	cells    map[string]map[int]uint64           // what was read since the last packet
	ran      int
}

func newOnBMv2(t *testing.T) *onBMv2 {
	t.Helper()
	b, err := StartBMv2(p4.JSON, p4.Info, p4.CPUPort)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return &onBMv2{BMv2: b, counts: map[datapath.Port][]datapath.Counts{}}
}

// leaving are the verdicts on packets that leave.
var leaving = map[p4.Verdict]bool{p4.Forwarded: true, p4.Held: true, p4.Denied: true, p4.Lent: true, p4.Gone: true}

// Run waits until the packet has been counted among the verdicts of its port, and then for the frame that leaves, if the verdict says so. What leaves against
// its verdict comes out of the next Run.
func (b *onBMv2) Run(in datapath.Port, frame []byte) ([]Leaves, error) {
	b.cells, b.ran = map[string]map[int]uint64{}, b.ran+1
	if in == p4.CPUPort {
		b.election = max(b.election, binary.BigEndian.Uint64(frame[4+len(handEthernet)+8:]))
	}
	if b.counts[in] == nil {
		var err error
		if b.counts[in], err = b.verdicts(in); err != nil {
			return nil, err
		}
	}
	if err := b.Send(in, frame); err != nil {
		return nil, err
	}
	for end := time.Now().Add(patience); ; {
		now, err := b.verdicts(in)
		if err != nil {
			return nil, err
		}
		want, counted := 0, false
		for v, c := range now {
			if c.Packets == b.counts[in][v].Packets {
				continue
			}
			if counted || c.Packets != b.counts[in][v].Packets+1 {
				return nil, fmt.Errorf("one packet, and the verdicts are %v, were %v", now, b.counts[in])
			}
			if counted = true; leaving[p4.Verdict(v)] { //nolint:gosec // small
				want = 1
			}
		}
		if counted {
			b.counts[in] = now
			return b.frames(want, patience), nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("a packet from port %d is not counted", in)
		}
	}
}

func (b *onBMv2) verdicts(port datapath.Port) ([]datapath.Counts, error) {
	var cells []int
	for v := p4.Forwarded; v <= p4.Gone; v++ {
		cells = append(cells, v.Cell(uint16(port)))
	}
	return b.Counters("BifrostIngress.verdicts", cells...)
}

// Cell reads the words, or slots, around the one that is asked for.
func (b *onBMv2) Cell(register string, index int) ([]byte, error) {
	if _, ok := b.cells[register][index]; !ok {
		if err := b.read(register, index); err != nil {
			return nil, err
		}
	}
	return binary.BigEndian.AppendUint64(nil, b.cells[register][index]), nil
}

func (b *onBMv2) read(register string, index int) error {
	const in = "BifrostIngress.rights."
	o := rights.Operation{Op: rights.ReadSlots, Election: b.election, First: uint32(index) &^ 3} //nolint:gosec // small
	if register == in+"words" {
		o.Op, o.First = rights.ReadWords, uint32(index)&^7 //nolint:gosec // small
	}
	before, ran := b.cells, b.ran
	out, err := b.Run(p4.CPUPort, handOf(&o))
	b.cells, b.ran = before, ran
	if err != nil {
		return err
	}
	const header = 4 + 14 + handBytes
	if len(out) != 1 || out[0].Port != p4.CPUPort || len(out[0].Frame) < header || out[0].Frame[4+14+1] != byte(rights.Done) {
		return fmt.Errorf("reading %s[%d]: %x", register, index, out)
	}
	values := out[0].Frame[header:]
	for n := 0; len(values) >= 8; n, values = n+1, values[8:] {
		name, at := in+"words", int(o.First)+n
		if o.Op == rights.ReadSlots {
			name, at = in+"slot_"+slotRegisters[n%len(slotRegisters)], int(o.First)+n/len(slotRegisters)
		}
		if b.cells[name] == nil {
			b.cells[name] = map[int]uint64{}
		}
		b.cells[name][at] = binary.BigEndian.Uint64(values)
	}
	return nil
}

// TestRights_BMv2: bmv2 does what the model of rights does, packet by packet.
func TestRights_BMv2(t *testing.T) {
	if !HasBMv2() {
		t.Skip("bmv2 is not installed")
	}
	var all []*onBMv2
	compareRights(t, func() Target {
		b := newOnBMv2(t)
		all = append(all, b)
		return b
	})
	for i, b := range all {
		if late := b.frames(1, quiet); len(late) > 0 {
			t.Errorf("executor %d: what nobody awaits leaves: %v", i, late)
		}
		t.Logf("executor %d: %d packets and operations", i, b.ran)
	}
}

// TestPorts_BMv2: bmv2 judges what comes to the ports of calls, and nothing else.
func TestPorts_BMv2(t *testing.T) {
	if !HasBMv2() {
		t.Skip("bmv2 is not installed")
	}
	if err := Ports(newOnBMv2(t)); err != nil {
		t.Error(err)
	}
}
