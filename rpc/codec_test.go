package rpc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestTakeBack: a call with several pointers that a node has refused is the same datagram when it is sent anew,
// whether it fits a packet or not.
func TestTakeBack(t *testing.T) {
	for _, large := range []bool{false, true} {
		c := newCodec(maxDatagram)
		if err := c.WriteMessageBegin(t.Context(), "add", thrift.CALL, 0); err != nil {
			t.Fatal(err)
		}
		for i := range uint32(3) {
			p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(i, 1))
			if err := (&bifrost.GlobalPointer{Address: p[:]}).Write(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		h := rpcpacket.Header{Type: rpcpacket.Call}
		size := c.size()
		first := slices.Clone(c.datagram(&h))
		if large {
			_, payload := c.large(maxDatagram, rpcpacket.Push{})
			c.takeBack(payload)
		} else {
			c.takeBack(nil)
		}
		if again := c.datagram(&h); !bytes.Equal(first, again) || len(first) != size || len(c.pointers) != 3 {
			t.Errorf("large %v: the call had %d bytes and has %d, or others; it has %d pointers", large, len(first), len(again), len(c.pointers))
		}
		c.free()
	}
}

// TestArguments_Large: the first packet of a call that exceeds a packet has the hash of all its arguments, as its callee
// would compute it. A call with another pointer has another hash.
func TestArguments_Large(t *testing.T) {
	hashOf := func(slot uint32) uint64 {
		c := newCodec(1 << 16)
		defer c.free()
		p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(slot, 1))
		err := errors.Join(c.WriteMessageBegin(t.Context(), "add", thrift.CALL, 0), (&bifrost.GlobalPointer{Address: p[:]}).Write(t.Context(), c), c.WriteBinary(t.Context(), make([]byte, 2000)))
		if err != nil {
			t.Fatal(err)
		}
		h := rpcpacket.Header{Type: rpcpacket.Call, Flags: rpcpacket.Flags(0).WithPolicy(PolicyRecover), Service: 7}
		trailer := (&Node{ports: ports{budget: 1400}}).trailer(nil, c, &h)
		hash := binary.BigEndian.Uint64(trailer[len(trailer)-argumentsSize:])
		whole, err := rpcpacket.Parse(c.datagram(&h))
		if err != nil {
			t.Fatal(err)
		}
		if want := argumentsOf(&whole); len(trailer) != argumentsSize || hash != want {
			t.Errorf("the trailer has %d bytes, the hash %#x, want %#x", len(trailer), hash, want)
		}
		return hash
	}
	if one, other := hashOf(64), hashOf(128); one == other {
		t.Errorf("both have the hash %#x", one)
	}
}

// TestFirstHasRoom: the first packet of a message has room for as many regions as there may be, for the longest trailer and for 64 bytes
// of payload, whatever the MTU.
func TestFirstHasRoom(t *testing.T) {
	longest := make([]byte, (1+control.MaxSerial)*len(rpcpacket.ID{})+argumentsSize)
	for mtu := minMTU; mtu <= maxDatagram+8; mtu += 1 + mtu/9001*60 { // of large ones, some
		budget := min(mtu-netio.Overhead, maxDatagram)
		m := rpcpacket.Message{Trailer: longest, Payload: make([]byte, budget), Lists: make([]rpcpacket.List, rpcpacket.MaxLists)}
		if first, ok := rpcpacket.First(m.Append(nil), budget, rpcpacket.Push{}); !ok || len(first) != budget {
			t.Fatalf("MTU %d: %d bytes, %v", mtu, len(first), ok)
		}
	}
}

// TestRegions: a message names each region once, however many pointers lead into it. More regions than a message may name are refused,
// and the error tells what to do.
func TestRegions(t *testing.T) {
	c := newCodec(maxDatagram)
	defer c.free()
	write := func(region uint32, offset int64) error {
		p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(region, 1)).Add(offset)
		return (&bifrost.GlobalPointer{Address: p[:]}).Write(t.Context(), c)
	}
	if err := c.WriteMessageBegin(t.Context(), "add", thrift.CALL, 0); err != nil {
		t.Fatal(err)
	}
	for i := range int64(rpcpacket.MaxRegions * 3) {
		if err := write(uint32(i%rpcpacket.MaxRegions), i); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := rpcpacket.Parse(c.datagram(&rpcpacket.Header{Type: rpcpacket.Call})); err != nil || len(m.Bases(rackaddr.DefaultDSMPrefix)) != rpcpacket.MaxRegions {
		t.Errorf("%d lists, %v", len(m.Lists), err)
	}
	if err := write(rpcpacket.MaxRegions, 0); !errors.Is(err, errManyRegions) || !errors.Is(c.failed, errManyRegions) || !strings.Contains(err.Error(), "put the pointers into a region") {
		t.Errorf("a region too many: %v", err)
	}
}

// TestPointersAreListed: who reads a message gets global pointers into the regions that its packet lists, and no others, however deep they are and
// whatever the protocol is. Whatever else is 16 bytes long is none of it.
func TestPointersAreListed(t *testing.T) {
	p, other := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1, 1)), dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(2, 1))
	inside, reused := p.Add(99), dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1, 2))
	outer := func(c *codec, inner thrift.TStruct) error { // as the arguments of a method are
		return errors.Join(c.WriteStructBegin(t.Context(), "args"), c.WriteFieldBegin(t.Context(), "p", thrift.STRUCT, 3), inner.Write(t.Context(), c),
			c.WriteFieldEnd(t.Context()), c.WriteFieldStop(t.Context()), c.WriteStructEnd(t.Context()))
	}
	for _, protocol := range []Protocol{Binary, Compact} {
		for what, c := range map[string]struct {
			in, out thrift.TStruct
			listed  []dsmpacket.Pointer
			refused bool
		}{
			"listed":         {&bifrost.GlobalPointer{Address: p[:]}, &bifrost.GlobalPointer{}, []dsmpacket.Pointer{other, p}, false},
			"not listed":     {&bifrost.GlobalPointer{Address: p[:]}, &bifrost.GlobalPointer{}, nil, true},
			"elsewhere":      {&bifrost.GlobalPointer{Address: inside[:]}, &bifrost.GlobalPointer{}, []dsmpacket.Pointer{p}, false},
			"reused":         {&bifrost.GlobalPointer{Address: reused[:]}, &bifrost.GlobalPointer{}, []dsmpacket.Pointer{p}, true},
			"another":        {&bifrost.GlobalPointer{Address: p[:]}, &bifrost.GlobalPointer{}, []dsmpacket.Pointer{other}, true},
			"nil":            {&bifrost.GlobalPointer{Address: make([]byte, 16)}, &bifrost.GlobalPointer{}, nil, false},
			"in a reference": {&bifrost.Reference{Pointer: &bifrost.GlobalPointer{Address: p[:]}}, &bifrost.Reference{}, nil, true},
			"listed, in one": {&bifrost.Reference{Pointer: &bifrost.GlobalPointer{Address: p[:]}}, &bifrost.Reference{}, []dsmpacket.Pointer{p}, false},
			"value of one":   {&bifrost.Reference{Length: 16, Value: p[:]}, &bifrost.Reference{}, nil, false},
		} {
			w, r := newCodec(maxDatagram), newCodec(0)
			w.speak(protocol)
			if err := errors.Join(w.WriteMessageBegin(t.Context(), "add", thrift.CALL, 0), outer(w, c.in), w.WriteMessageEnd(t.Context())); err != nil {
				t.Fatal(err)
			}
			m := rpcpacket.Message{Lists: rpcpacket.ListsOf(c.listed...), Payload: w.payload()}
			_, err := r.takeHeaders(&m)
			if _, openErr := r.open(t.Context()); err != nil || openErr != nil {
				t.Fatal(err, openErr)
			}
			_, begun := r.ReadStructBegin(t.Context())
			_, _, _, field := r.ReadFieldBegin(t.Context())
			if err := errors.Join(begun, field, c.out.Read(t.Context(), r)); (err != nil) != c.refused {
				t.Errorf("%v, %s: %v", protocol, what, err)
			}
			w.free()
			r.free()
		}
	}
}
