package gatekeeper

import (
	"encoding/binary"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/p4/rights"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// modelled answers an operation's packet as the model of the switch does.
func modelled(sw *rights.Switch, b []byte) []byte {
	be := binary.BigEndian
	h := b[14:]
	region := dsmpacket.RegionID(be.Uint64(h[32:]))
	o := rights.Operation{
		Op: rights.Op(h[0] - 1), Owner: rights.Row(be.Uint16(h[2:])), Election: be.Uint64(h[8:]), First: be.Uint32(h[24:]),
		Ref: rights.Ref{Slot: be.Uint32(h[24:]), Number: rights.Number(be.Uint64(h[16:]))},
	}
	if h[6] == 1 {
		o.Regions = []rights.Region{{Slot: region.Slot(), Generation: region.Generation()}}
	}
	f := sw.Do(&o)
	a := slices.Clone(b)
	a[15] = byte(f.Outcome)
	found := a[14+handHeader:]
	for i, w := range f.Words {
		be.PutUint64(found[8*i:], uint64(w.Generation)<<32|uint64(w.Owner)<<20|uint64(w.Lent))
	}
	for i, k := range f.Slots {
		c := found[handHeader*i:]
		be.PutUint64(c, uint64(k.Number))
		be.PutUint64(c[8:], uint64(k.Caller)<<26|uint64(k.Callee)<<14|uint64(k.Count)<<11|uint64(k.Slots)<<8|uint64(k.State))
		for j, g := range k.Regions[:k.Count] {
			be.PutUint64(c[32+8*j:], uint64(dsmpacket.IDOf(g.Slot, g.Generation)))
		}
	}
	return a
}

// TestHand_Lossy: a job comes to its end though packets are lost, come late and come twice; no more than a window of them is out.
func TestHand_Lossy(t *testing.T) {
	sw := rights.New(rights.Rack)
	sw.Rebuilding = true
	owned := map[dsmpacket.RegionID]bool{}
	for i := range uint32(100) {
		sw.Do(&rights.Operation{Op: rights.SetWord, First: 64 + 3*i, Word: rights.Word{Generation: i + 1, Owner: rights.Row(i%2 + 1)}})
		if i%2 == 0 {
			owned[dsmpacket.IDOf(64+3*i, i+1)] = true
		}
	}
	for i := range uint32(20) {
		sw.Do(&rights.Operation{Op: rights.SetSlot, First: 16 + i, Slot: rights.Slot{Number: 7, State: rights.Open, Slots: 1, Caller: 1, Callee: rights.Row(i + 1)}})
	}
	rnd := rand.New(rand.NewSource(1))
	h, now := hand{}, time.Unix(0, 0)
	h.lead(9)
	one := reading{blocks: []uint32{1, 2}, batches: []uint32{1, 2, 3, 4, 5, 6}}.begun()
	other := reading{blocks: []uint32{1}, batches: []uint32{5}}.begun()
	h.begin(&one)
	h.begin(&other)
	var late [][]byte
	for step := 0; one.left+other.left > 0; step++ {
		if step > 10_000 {
			t.Fatalf("%d and %d operations have no answer", one.left, other.left)
		}
		sent := h.send(now)
		if len(h.out) > handWindow {
			t.Fatalf("%d operations are out", len(h.out))
		}
		if at := h.deadline(); len(h.out) > 0 && at.After(now.Add(handPauses.Most)) {
			t.Fatalf("nothing is sent before %s", at.Sub(now))
		}
		for _, f := range append(sent, late...) {
			if rnd.Intn(3) == 0 {
				continue
			}
			a := modelled(sw, f)
			for range 1 + rnd.Intn(2) {
				if _, err := h.take(a); err != nil {
					t.Fatal(err)
				}
			}
			if rnd.Intn(4) == 0 {
				late = append(late[:min(len(late), 8)], f)
			}
		}
		now = now.Add(handPauses.First / 2)
	}
	for _, w := range one.words {
		if w.owner != 1 {
			continue
		}
		if !owned[w.region] {
			t.Errorf("%s is owned by row %d", w.region, w.owner)
		}
		delete(owned, w.region)
	}
	if len(owned) > 0 || len(one.slots) != 20 || len(other.slots) != 16 {
		t.Errorf("%d words are missing; %d and %d slots", len(owned), len(one.slots), len(other.slots))
	}
	if h.deadline() != (time.Time{}) || len(h.send(now.Add(time.Hour))) > 0 {
		t.Error("all is answered, and something is sent")
	}
}

// TestHand_Stale: one whose place another Gatekeeper has taken does nothing any more.
func TestHand_Stale(t *testing.T) {
	sw := rights.New(rights.Rack)
	h, now := hand{}, time.Unix(0, 0)
	h.lead(9)
	sw.Do(&rights.Operation{Op: rights.ReadWords, Election: 10})
	r := reading{batches: []uint32{1}}.begun()
	h.begin(&r)
	for _, f := range h.send(now) {
		if j, err := h.take(modelled(sw, f)); j != nil || err != nil {
			t.Errorf("%v, %v", j, err)
		}
	}
	if !h.stale || len(h.send(now.Add(time.Hour))) > 0 || !h.deadline().IsZero() {
		t.Error("it goes on")
	}
	h.lead(11)
	h.lost()
	for _, f := range h.send(now) {
		_, _ = h.take(modelled(sw, f))
	}
	if r.left != 0 {
		t.Errorf("when it rules again, %d operations have no answer", r.left)
	}
}

// TestHand_End: answers to a job that was given up are nobody's.
func TestHand_End(t *testing.T) {
	sw := rights.New(rights.Rack)
	h := hand{}
	r := reading{blocks: []uint32{1, 2}}.begun()
	h.begin(&r)
	sent := h.send(time.Unix(0, 0))
	h.end(&r)
	for _, f := range sent {
		if j, err := h.take(modelled(sw, f)); j != nil || err != nil {
			t.Errorf("%v, %v", j, err)
		}
	}
	if _, err := h.take(make([]byte, 40)); err == nil {
		t.Error("a packet that is too short is an answer")
	}
}

// TestSlotOf reads all parts of a call slot's registers.
func TestSlotOf(t *testing.T) {
	v := make([]byte, handHeader)
	be := binary.BigEndian
	be.PutUint64(v, 99)
	be.PutUint64(v[8:], 77<<38|5<<26|6<<14|2<<11|3<<8|1<<6|1<<5|1<<4|4)
	be.PutUint64(v[16:], 98)
	be.PutUint64(v[24:], 255)
	be.PutUint64(v[32:], uint64(dsmpacket.IDOf(8, 9)))
	be.PutUint64(v[40:], uint64(dsmpacket.IDOf(10, 11)))
	got := slotOf(33, v)
	if got.slot != 33 || got.number != 99 || got.state != slotFailed || got.caller != 5 || got.callee != 6 || got.place != 1 || !got.given || !got.standing ||
		got.parent != 77 || got.lender != rpcpacket.Number(98) || got.children != 255 || !slices.Equal(got.regions, []dsmpacket.RegionID{dsmpacket.IDOf(8, 9), dsmpacket.IDOf(10, 11)}) {
		t.Errorf("%+v", got)
	}
}

// TestHand_FormerAnswers: what the switch answers to a former Gatekeeper, whose operations have the same tags, comes to the one that has taken its place. It
// says nothing of that one's operations, nor that it is stale.
func TestHand_FormerAnswers(t *testing.T) {
	sw, now := rights.New(rights.Rack), time.Unix(0, 0)
	former, h := hand{}, hand{}
	former.lead(9)
	h.lead(10)
	old, r := reading{batches: []uint32{1}}.begun(), reading{batches: []uint32{1}}.begun()
	former.begin(&old)
	h.begin(&r)
	late := former.send(now)
	done := modelled(sw, late[0])
	ours := h.send(now)
	sw.Do(&rights.Operation{Op: rights.ReadWords, Election: 10})
	for _, answer := range [][]byte{done, modelled(sw, late[1])} {
		if j, err := h.take(answer); j != nil || err != nil || h.stale || r.left != len(ours) {
			t.Errorf("an answer to the former one: %v, %v; stale: %v, %d of %d operations have no answer", j, err, h.stale, r.left, len(ours))
		}
	}
	for _, f := range ours {
		if j, err := h.take(modelled(sw, f)); j != &r || err != nil {
			t.Errorf("an answer: %v, %v", j, err)
		}
	}
}
