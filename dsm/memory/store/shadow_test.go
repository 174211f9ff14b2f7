package store

import (
	"bytes"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// shaded is a store with regions of 256 KiB that have content.
type shaded struct {
	t        *testing.T
	store    *Store
	requests uint64
}

const shadedSize = 256 << 10

func (s *shaded) ask(op dsmpacket.Op, to dsmpacket.Pointer, execution byte, length uint64, data []byte) Answer {
	s.t.Helper()
	s.requests++
	r := Request{Node: rackaddr.Node(1), To: to.With(op), Data: data}
	r.Header = dsmpacket.Header{Kind: dsmpacket.Request, Request: s.requests, Floor: s.requests, Incarnation: 1, Length: length}
	r.Header.Execution[15], r.Header.Index = execution, uint32(s.requests)
	a, drop := handle(s.store, &r)
	if drop != NotDropped || a.Header.Status != fault.OK {
		s.t.Fatalf("%s: %v, %v", op, drop, a.Header.Status)
	}
	return a
}

// fill overwrites a region in pieces that are not pages.
func (s *shaded) fill(p dsmpacket.Pointer, execution, with byte) {
	s.t.Helper()
	const piece = 65408
	for at := 0; at < shadedSize; at += piece {
		n := min(piece, shadedSize-at)
		s.ask(dsmpacket.OpWrite, p.Add(int64(at)), execution, uint64(n), bytes.Repeat([]byte{with}, n))
	}
}

func (s *shaded) holds(p dsmpacket.Pointer, want byte) {
	s.t.Helper()
	reg := s.store.regions.byID[p.ID()]
	if b := reg.view(0, shadedSize); bytes.Count(b, []byte{want}) != shadedSize || &b[0] != &reg.run(0, 1)[0] {
		s.t.Errorf("the region holds %d of %d bytes %d; in one block: %t", bytes.Count(b, []byte{want}), shadedSize, want, &b[0] == &reg.run(0, 1)[0])
	}
}

func (s *shaded) alloc() dsmpacket.Pointer {
	s.t.Helper()
	p := s.ask(dsmpacket.OpAlloc, choose(s.store, rackaddr.Node(1)), 0, shadedSize, nil).From.Bare()
	s.fill(p, 0, 1)
	return p
}

func newShaded(t *testing.T, memory int) *shaded {
	s := &shaded{t: t, store: newTestStore(memory)}
	s.store.KeepUndo(8 << 20)
	return s
}

// What overwrites a region again and again turns it from one block to the other:
// nothing is copied but the pages that two datagrams share.
func TestShadow(t *testing.T) {
	s := newShaded(t, 8<<20)
	p := s.alloc()
	for round := byte(2); round < 10; round++ {
		s.fill(p, round, round)
		s.holds(p, round)
		reg := s.store.regions.byID[p.ID()]
		if reg.changes.turned == nil || len(s.store.undo.pages.list) > 0 {
			t.Fatalf("round %d: turned %t, %d pages were copied", round, reg.changes.turned != nil, len(s.store.undo.pages.list))
		}
		run := control.Run{Execution: control.ExecutionID{15: round}, Node: rackaddr.Node(1), Incarnation: 1}
		if round%2 == 0 {
			s.store.Rollback(run, 1)
			s.holds(p, 1)
			s.fill(p, 0, 1)
		} else {
			s.store.Commit(run, 1)
			s.holds(p, round)
			s.fill(p, 0, 1)
		}
		checkUndo(t, s.store)
	}
	s.ask(dsmpacket.OpFree, p, 0, 0, nil)
	s.whole(8 << 20)
}

// whole checks that all memory has come back, and is zero.
func (s *shaded) whole(memory int) {
	s.t.Helper()
	for s.store.Dirty() {
		s.store.Clean(1 << 30)
	}
	if s.store.Used() != 0 || len(s.store.shadows.list) > 0 || s.store.shadows.bytes != 0 || s.store.undo.shares.Used() != 0 {
		s.t.Errorf("%d bytes are used, %d of shadows, %d of undo", s.store.Used(), s.store.shadows.bytes, s.store.undo.shares.Used())
	}
	free := 0
	for class, b := range s.store.arena.free {
		free += len(b.list) << class
	}
	if free != memory || bytes.Count(s.store.arena.mem, []byte{0}) != memory {
		s.t.Errorf("%d bytes are free of %d, %d are zero", free, memory, bytes.Count(s.store.arena.mem, []byte{0}))
	}
}

// Shadows that nobody needs make room for regions, and there are not too many.
func TestShadowsMakeRoom(t *testing.T) {
	const memory = 64 << 20
	s := newShaded(t, memory)
	s.store.KeepUndo(64 << 20)
	idleShadows := uint64(Limits{}.withDefaults().IdleShadows)
	var regions []dsmpacket.Pointer
	for range idleShadows/shadedSize + 10 {
		p := s.alloc()
		s.fill(p, 1, 2)
		regions = append(regions, p)
	}
	s.store.Commit(control.Run{Execution: control.ExecutionID{15: 1}, Node: rackaddr.Node(1), Incarnation: 1}, 1)
	if n := s.store.shadows.bytes; n != idleShadows {
		t.Errorf("%d bytes of shadows are kept", n)
	}
	for _, p := range regions {
		s.holds(p, 2)
	}
	s.small()
	for s.store.Used() < memory {
		regions = append(regions, s.alloc())
	}
	if n := s.store.shadows.bytes; n != 0 {
		t.Errorf("memory is full, and %d bytes are shadows", n)
	}
	for i, p := range regions {
		if uint64(i) < idleShadows/shadedSize+10 {
			s.holds(p, 2)
		}
		s.ask(dsmpacket.OpFree, p, 0, 0, nil)
	}
	s.whole(memory)
}

// small has an execution overwrite all but one page of a region that has fewer than
// 64, and then gives its shadow back.
func (s *shaded) small() {
	s.t.Helper()
	const size = 64 << 10 // the default of Limits.Shadow
	p := s.ask(dsmpacket.OpAlloc, choose(s.store, rackaddr.Node(1)), 0, size, nil).From.Bare()
	s.ask(dsmpacket.OpWrite, p, 0, size, bytes.Repeat([]byte{3}, size))
	s.ask(dsmpacket.OpWrite, p, 9, size-pageSize, bytes.Repeat([]byte{4}, size-pageSize))
	s.store.Commit(control.Run{Execution: control.ExecutionID{15: 9}, Node: rackaddr.Node(1), Incarnation: 1}, 1)
	reg := s.store.regions.byID[p.ID()]
	if reg.shadow == nil {
		s.t.Fatal("no shadow")
	}
	s.store.unshade(reg)
	if b := reg.view(0, size); bytes.Count(b, []byte{4}) != size-pageSize || bytes.Count(b[size-pageSize:], []byte{3}) != pageSize {
		s.t.Error("the region has changed")
	}
	s.ask(dsmpacket.OpFree, p, 0, 0, nil)
}
