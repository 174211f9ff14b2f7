//go:build linux

package ebpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

func home(i int) datapath.Entry {
	return datapath.Entry{
		Table: "SampleIngress.home", Match: []datapath.Match{{Value: []byte{0, 0, 0, 0, byte(i >> 8), byte(i)}}},
		Action: &datapath.Action{Name: "SampleIngress.to_hop", Params: [][]byte{{0, 1}}},
	}
}

// A full table refuses the next entry and stays as it was.
func TestApply_FullTable(t *testing.T) {
	x := start(t, nil)
	size := x.prog.Table("SampleIngress.home").MaxSize
	for i := range size {
		if err := x.Apply(datapath.Insert, home(i)); err != nil {
			t.Fatalf("entry %d of %d: %v", i, size, err)
		}
	}
	if err := x.Apply(datapath.Insert, home(size)); !errors.Is(err, datapath.ErrFull) {
		t.Fatalf("one too many: %v", err)
	}
	if err := x.Apply(datapath.Modify, home(0)); err != nil {
		t.Errorf("modify in a full table: %v", err)
	}
	if err := x.SetDefault("SampleIngress.home", nil); err != nil {
		t.Errorf("the default of a full table: %v", err)
	}
	for i := range size {
		if err := x.Apply(datapath.Delete, home(i)); err != nil {
			t.Fatalf("entry %d is gone: %v", i, err)
		}
	}
}

// A packet that has found an entry keeps it as it was, whatever becomes of the
// entry: while routes and hops come and go, each packet is dropped or goes where
// its own address leads, never where another's does. (With a hash map for a table,
// whose elements are used again at once, this fails.)
func TestApply_NoLookupFindsAnothersValue(t *testing.T) {
	needRoot(t)
	long := func(code asm.Instructions) asm.Instructions { return slower(code, 350) } // time to delete and insert
	x, err := New(sampled(t), Config{CPUPort: sample.CPUPort, edit: long})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if err := x.Apply(datapath.Insert, known()); err != nil {
		t.Fatal(err)
	}
	const destinations, packets = 6, 1500
	var load sync.WaitGroup
	var left atomic.Int32 // goroutines that send
	for range 2 {
		left.Add(1)
		load.Go(func() {
			defer left.Add(-1)
			for n := range packets {
				if to := byte(n%destinations) + 1; !sendTo(t, x, to) {
					return
				}
			}
		})
	}
	defer load.Wait()
	there := map[int]bool{}
	for left.Load() > 0 && !t.Failed() {
		i := rand.IntN(2 * destinations)
		op := map[bool]datapath.Op{false: datapath.Insert, true: datapath.Delete}[there[i]]
		if err := x.Apply(op, wayTo(byte(i/2) + 1)[i%2]); err != nil {
			t.Fatal(err)
		}
		there[i] = !there[i]
	}
}

// wayTo is the route and the hop to node fd00::b00+n, at port n.
func wayTo(n byte) [2]datapath.Entry {
	r, h := route(), hop()
	r.Match = []datapath.Match{whole(node(n))}
	r.Action.Params = [][]byte{{0, n}}
	h.Match = []datapath.Match{{Value: []byte{0, n}}}
	h.Action.Params = [][]byte{{0, n}, {0, 0, 0, 0, 0, n}, make([]byte, 6)}
	return [2]datapath.Entry{r, h}
}

func node(n byte) netip.Addr { return netip.AddrFrom16([16]byte{0: 0xfd, 14: 0x0b, 15: n}) }

// sendTo runs a packet to a node, and is false if it went where it must not.
func sendTo(t *testing.T, x *Executor, n byte) bool {
	data := frame.UDP6{Src: netip.AddrPortFrom(nodeA, 1), Dst: netip.AddrPortFrom(node(n), 7), Payload: []byte("x")}.Append(nil)
	run := &ebpf.RunOptions{Data: data, DataOut: make([]byte, 512), Context: &skBuff{CB: [5]uint32{1 | testFlag}}}
	var after skBuff
	run.ContextOut = &after
	if _, err := x.main.Run(run); err != nil {
		t.Error(err)
		return false
	}
	if port := after.CB[3]; port != 0 && (port != uint32(n)+1 || run.DataOut[5] != n) {
		t.Errorf("a packet to node %d left by port %d to %x", n, port-1, run.DataOut[:6])
		return false
	}
	return true
}

func TestApply_Refuses(t *testing.T) {
	x := start(t, nil, known())
	bad := func(change func(*datapath.Entry)) datapath.Entry {
		e := route()
		change(&e)
		return e
	}
	for name, tc := range map[string]struct {
		op    datapath.Op
		entry datapath.Entry
		want  error // nil: any
	}{
		"twice":           {datapath.Insert, known(), datapath.ErrExists},
		"not there":       {datapath.Delete, route(), datapath.ErrNotFound},
		"not to modify":   {datapath.Modify, route(), datapath.ErrNotFound},
		"table":           {datapath.Insert, bad(func(e *datapath.Entry) { e.Table = "x" }), datapath.ErrNotFound},
		"action":          {datapath.Insert, bad(func(e *datapath.Entry) { e.Action = &datapath.Action{Name: "x"} }), datapath.ErrNotFound},
		"no action":       {datapath.Insert, bad(func(e *datapath.Entry) { e.Action = nil }), datapath.ErrUnsupported},
		"idle timeout":    {datapath.Insert, bad(func(e *datapath.Entry) { e.IdleTimeoutNs = 1 }), datapath.ErrUnsupported},
		"few fields":      {datapath.Insert, bad(func(e *datapath.Entry) { e.Match = nil }), nil},
		"short value":     {datapath.Insert, bad(func(e *datapath.Entry) { e.Match[0].Value = []byte{1} }), nil},
		"long prefix":     {datapath.Insert, bad(func(e *datapath.Entry) { e.Match[0].PrefixLen = 129 }), nil},
		"few parameters":  {datapath.Insert, bad(func(e *datapath.Entry) { e.Action.Params = nil }), nil},
		"short parameter": {datapath.Insert, bad(func(e *datapath.Entry) { e.Action.Params = [][]byte{{1}} }), nil},
	} {
		if err := x.Apply(tc.op, tc.entry); err == nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Nothing can be done to an executor that is closed, and closing twice is fine.
func TestClose(t *testing.T) {
	x := start(t, nil)
	for range 2 {
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.AttachPort(1, "lo", false); err == nil {
		t.Error("attached to a closed executor")
	}
	if err := x.Apply(datapath.Insert, route()); err == nil {
		t.Error("inserted into a closed executor")
	}
}

// FuzzPunted reads any frame from the CPU port's device, and any record of the ring.
func FuzzPunted(f *testing.F) {
	f.Add([]byte("0123456789ab\x88\xa8\xb1\x04rest"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, ok := punted(b); ok {
			whole := slices.Concat(b[:tapTagAt], b[tapTagAt+4:])
			if pad := int(b[tapTagAt+3]); string(got) != string(whole[pad:]) {
				t.Errorf("%x became %x, without %d bytes in front", b, got, pad)
			}
		}
		if got, ok := unheld(b); ok {
			n, pad := binary.NativeEndian.Uint32(b[recordLen:]), binary.NativeEndian.Uint32(b[recordPad:])
			want := bytes.Clone(b[recordPacket:][:n])
			if at := int32(binary.NativeEndian.Uint32(b[recordSum:])); at >= 0 && int(at)+2 <= len(want) && len(got) == len(want[pad:]) { // its checksum may be finished
				for i := range 2 {
					if k := int(at) + i - int(pad); k >= 0 {
						want[int(at)+i] = got[k]
					}
				}
			}
			if string(got) != string(want[pad:]) {
				t.Errorf("record %x became %x, want %x", b, got, want[pad:])
			}
		}
	})
}
