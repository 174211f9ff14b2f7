package control

import (
	"context"
	"net/netip"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Holdings is what the switch's registers have of a node: of its row, which its incarnations share. One that has joined again is told what it had
// when nothing of the former incarnation could happen any more, and nothing of this one had (docs/rights.md, section 7); of a node's first
// incarnation that is empty. Later a node may ask what it owns at the time (section 5), and is told of its regions alone: the words are read, then the
// slots, while packets pass.
type Holdings struct {
	// Slots are the call slots of its blocks that were used.
	Slots []HeldSlot `json:"slots,omitempty"`
	// Regions are those that it owns, by their bases, without those that open one-ways bring it.
	Regions []netip.Addr `json:"regions,omitempty"`
	// Shared says that standing leases of former incarnations are not over (Share, with ID 0).
	Shared bool `json:"shared,omitempty"`
}

// HeldSlot is a call slot.
type HeldSlot struct {
	Slot   uint32 `json:"slot"`
	Number uint64 `json:"number"`
	// Callee is the node that its callee's row belongs to now; the zero Addr if it belongs to none.
	Callee netip.Addr `json:"callee,omitzero"`
	State  SlotState  `json:"state"`
	// Place is which of its call's slots it is, from 0.
	Place uint8 `json:"place,omitempty"`
	// Given: its call is a one-way.
	Given bool `json:"given,omitempty"`
	// Regions are those that it lists, by their bases, while it is open.
	Regions []netip.Addr `json:"regions,omitempty"`
}

// SlotState is what has become of a slot's call. The numbers are the switch's.
type SlotState uint8

// The states.
const (
	SlotOpen    SlotState = 1
	SlotClosed  SlotState = 2 // it was answered
	SlotRefused SlotState = 3 // it was never permitted
	SlotFailed  SlotState = 4 // the Gatekeeper has ended it
)

// String returns the state's name.
func (s SlotState) String() string {
	return [...]string{"unused", "open", "closed", "refused", "failed", "", "", ""}[s&7]
}

// HoldingsQuery asks for a page of a node's holdings. Heard says that the node has all of them: they are forgotten then. What it had at its join it must
// have heard before it does anything with its rights.
type HoldingsQuery struct {
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
	// Now asks for what the node owns now. Such questions may wait for a second until they are answered.
	Now bool `json:"now,omitempty"`
	// Reading is HoldingsPage's of the pages before, 0 for the first one. From is that one's Next.
	Reading uint64 `json:"reading,omitempty"`
	From    int    `json:"from,omitempty"`
	Heard   bool   `json:"heard,omitempty"`
}

// HoldingsPage is a part of a node's holdings, MaxHoldings at most.
type HoldingsPage struct {
	Holdings
	// Reading tells the reading that the page is of. Who finds another one than before begins anew.
	Reading uint64 `json:"reading,omitempty"`
	// Next is where the next page begins, 0 if there is none.
	Next int `json:"next,omitempty"`
}

// MaxHoldings is how many slots and regions a HoldingsPage has at most.
const MaxHoldings = 512

// Page returns the part of the holdings that begins at a place.
func (h *Holdings) Page(from int) (p HoldingsPage) {
	end := from + MaxHoldings
	p.Shared = h.Shared
	p.Slots, p.Regions = part(h.Slots, 0, from, end), part(h.Regions, len(h.Slots), from, end)
	if end < len(h.Slots)+len(h.Regions) {
		p.Next = end
	}
	return p
}

// part is what of a list that begins at a place lies from one place to another.
func part[T any](all []T, at, from, end int) []T {
	from, end = min(max(from-at, 0), len(all)), min(max(end-at, 0), len(all))
	return all[from:end]
}

// ReadHoldings asks for all pages of a node's holdings, of its join or of now, and says that they were heard.
func ReadHoldings(ctx context.Context, now bool, ask func(context.Context, HoldingsQuery) (HoldingsPage, error)) (h Holdings, err error) {
	q := HoldingsQuery{Now: now}
	for {
		p, err := ask(ctx, q)
		switch {
		case err != nil:
			return Holdings{}, err
		case q.Reading != 0 && p.Reading != q.Reading:
			h, q = Holdings{}, HoldingsQuery{Now: now} // the Gatekeeper has begun anew
			continue
		case p.Next != 0 && p.Next <= q.From:
			return Holdings{}, fault.New(fault.Internal, "holdings", "a page from %d says that the next one begins at %d", q.From, p.Next)
		}
		h.Slots, h.Regions = append(h.Slots, p.Slots...), append(h.Regions, p.Regions...)
		h.Shared = p.Shared
		if p.Next == 0 {
			_, err = ask(ctx, HoldingsQuery{Now: now, Reading: p.Reading, Heard: true})
			return h, err
		}
		q.Reading, q.From = p.Reading, p.Next
	}
}
