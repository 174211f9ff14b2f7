package transport_test

import (
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// However many writes are given up while the network is dead, the server takes
// all that is needed to settle them afterwards.
func TestAbandonedWritesFitTheServersWindow(t *testing.T) {
	s := newSim(1, 1, 1)
	c := s.clients[0]
	var regions []dsmpacket.Pointer
	for range store.MaxSpan>>simClass + 1 {
		a := c.do(&transport.Transfer{Op: dsmpacket.OpAlloc, Pointer: dsmpacket.Make(simPrefix, 1, 0), Size: 1 << simClass})
		regions = append(regions, a.Region.Base)
	}
	s.loss.lost = 1
	for i := range store.MaxSpan + 100 {
		p := regions[i>>simClass].Add(int64(i & (1<<simClass - 1)))
		w := c.start(&transport.Transfer{Op: dsmpacket.OpWrite, Pointer: p, Buf: []byte{1}})
		if !c.endpoint.Cancel(s.now, w, fault.Canceled) {
			t.Fatalf("write %d was done on a dead network", i)
		}
		c.flush()
	}
	s.loss.lost = 0
	c.settle(regions...)
	if w := c.do(&transport.Transfer{Op: dsmpacket.OpWrite, Pointer: regions[0], Buf: []byte{2}}); w.Status != fault.OK {
		t.Errorf("afterwards: %v", w.Status)
	}
}
