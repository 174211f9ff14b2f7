package memory

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// TestAsking: whose a node is, is asked once when that matters, and again of its next incarnation only.
func TestAsking(t *testing.T) {
	n := wire.New(wire.Config{})
	blade, err := n.AddHost(wire.HostConfig{Name: "m3", Port: 1, Address: rackaddr.Blade(1)})
	must(t, err)
	asks := 0
	s, err := NewServer(Config{Stack: blade, Prefix: prefix, Machine: machine, Capacity: 1 << 20, Ask: func() { asks++ }, Ledgers: LedgerConfig{Space: 4096, Birth: testBirth}})
	must(t, err)
	must(t, s.Grant(control.Grant{Batches: []control.BatchOf{{Batch: 1, Node: rackaddr.Node(1)}}}))
	slot := uint32(dsmpacket.BatchSlots)
	allocate := func(incarnation uint32) {
		slot++
		must(t, s.now(func(st *store.Store) error {
			st.KeepUndo(1 << 12)
			s.handle(&netio.Message{}, &store.Request{
				Node: rackaddr.Node(1), To: dsmpacket.Make(prefix, machine, dsmpacket.IDOf(slot, 1)).With(dsmpacket.OpAlloc),
				Header: dsmpacket.Header{
					Kind: dsmpacket.Request, Request: uint64(slot), Floor: 1, Incarnation: incarnation, Length: 64, Execution: [16]byte{byte(slot)},
				},
			}, newAnswers(s))
			return nil
		}))
	}
	for incarnation := range uint32(2) {
		for range 3 { // the first one takes the part of the undo below which it does not matter
			allocate(1 + incarnation)
		}
		q := s.Asking()
		if want := int(1 + incarnation); asks != want || !slices.Equal(q.Nodes, []netip.Addr{rackaddr.Node(1)}) || len(s.Asking().Nodes) > 0 {
			t.Errorf("incarnation %d: it has asked %d times, and asks about %v", 1+incarnation, asks, q.Nodes)
		}
		s.Told(q, control.OwnersReply{Owners: []share.Owner{{Port: 3}}})
	}
	allocate(2)
	if q := s.Asking(); asks != 2 || len(q.Nodes) > 0 {
		t.Errorf("it asks again about %v", q.Nodes)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, s.Run(ctx))
}
