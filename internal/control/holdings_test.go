package control

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// TestReadHoldings: pages bring all, in their order. When the Gatekeeper has read anew meanwhile, they are asked for from the beginning.
func TestReadHoldings(t *testing.T) {
	var all Holdings
	for i := range MaxHoldings + 3 {
		all.Slots = append(all.Slots, HeldSlot{Slot: uint32(i)}) //nolint:gosec // small
		all.Regions = append(all.Regions, rackaddr.Node(uint64(i)))
	}
	for _, h := range []Holdings{{}, {Slots: all.Slots[:1]}, {Regions: all.Regions[:MaxHoldings]}, all} {
		for restart := range 4 {
			asked, heard, reading := 0, false, uint64(1)
			got, err := ReadHoldings(t.Context(), false, func(_ context.Context, q HoldingsQuery) (p HoldingsPage, err error) {
				if asked++; asked == restart {
					reading++
				}
				if q.Heard {
					heard = true
					return p, nil
				}
				p = h.Page(q.From)
				p.Reading = reading
				if n := len(p.Slots) + len(p.Regions); n > MaxHoldings {
					t.Errorf("a page has %d", n)
				}
				return p, nil
			})
			if err != nil || !heard || !reflect.DeepEqual(got, h) {
				t.Errorf("%d slots, %d regions of %d, %d; heard: %v, %v", len(got.Slots), len(got.Regions), len(h.Slots), len(h.Regions), heard, err)
			}
		}
	}
	broken := errors.New("broken")
	if _, err := ReadHoldings(t.Context(), false, func(context.Context, HoldingsQuery) (HoldingsPage, error) { return HoldingsPage{}, broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if _, err := ReadHoldings(t.Context(), false, func(context.Context, HoldingsQuery) (HoldingsPage, error) { return HoldingsPage{Next: 1}, nil }); err == nil {
		t.Error("pages without end are no error")
	}
}
