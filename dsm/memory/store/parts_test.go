package store

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// Blocks do not overlap, read as zeros, and come together again.
func TestArena(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1<<dsmpacket.MinClass, 1<<20).Draw(t, "size")
		a := newArena(make([]byte, size), func(b []byte) { clear(b) }, Limits{}.withDefaults())
		type block struct {
			off   uint64
			class uint8
			mark  byte
		}
		var held []block
		used := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				class := rapid.Uint8Range(dsmpacket.MinClass, 20).Draw(t, "class")
				off, ok := a.take(class)
				if !ok {
					return
				}
				b := a.bytes(off, class)
				if off&(1<<class-1) != 0 || len(b) != 1<<class || len(bytes.Trim(b, "\x00")) != 0 {
					t.Fatalf("block of class %d at %#x", class, off)
				}
				mark := byte(1 + len(held)%255)
				for i := range b {
					b[i] = mark
				}
				held = append(held, block{off, class, mark})
				used += 1 << class
			},
			"give": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				b := held[i]
				held = append(held[:i], held[i+1:]...)
				if len(bytes.Trim(a.bytes(b.off, b.class), string(rune(b.mark)))) != 0 && b.mark < 128 {
					t.Fatalf("block at %#x was written by another", b.off)
				}
				a.give(b.off, b.class, 0, 1<<b.class)
				used -= 1 << b.class
			},
			"clean": func(*rapid.T) { a.clean(1 << 14) },
			"": func(t *rapid.T) {
				if a.used != used {
					t.Fatalf("used %d, want %d", a.used, used)
				}
			},
		})
		for _, b := range held {
			a.give(b.off, b.class, 0, 1<<b.class)
		}
		for a.clean(1 << 30) {
		}
		if total := freeBytes(a); total != uint64(size)&^63 {
			t.Fatalf("%d of %d bytes are free in the end", total, size)
		}
		if whole := newArena(a.mem, a.discard, Limits{}.withDefaults()); freeBlocks(a) != freeBlocks(whole) {
			t.Fatalf("%d free blocks in the end, %d at the start", freeBlocks(a), freeBlocks(whole))
		}
	})
}

func freeBytes(a *arena) (n uint64) {
	for class := range a.free {
		n += uint64(len(a.free[class].list)) << class
	}
	return n
}

func freeBlocks(a *arena) (n int) {
	for class := range a.free {
		n += len(a.free[class].list)
	}
	return n
}

// A window remembers what is above the floor and nothing below it, in any order
// of ids, and grows and shrinks without losing a record.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := newClients(Limits{}.withDefaults())
		w := &window{floor: 1}
		model := map[uint64]record{}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				id := w.floor + rapid.OneOf(rapid.Uint64Range(0, 40), rapid.Uint64Range(0, MaxSpan+10)).Draw(t, "above floor")
				if w.find(id) != nil {
					return
				}
				if ok := all.reserve(w, id); ok != (id-w.floor < MaxSpan) {
					t.Fatalf("id %d above floor %d: %v", id, w.floor, ok)
				} else if ok {
					r := record{id: id, length: id * 7, op: dsmpacket.OpWrite}
					w.put(r)
					model[id] = r
				}
			},
			"raise": func(t *rapid.T) {
				w.raise(w.floor + rapid.OneOf(rapid.Uint64Range(0, 40), rapid.Uint64Range(0, MaxSpan)).Draw(t, "by"))
			},
			"": func(t *rapid.T) {
				for id, want := range model {
					got := w.find(id)
					if id < w.floor && got != nil || id >= w.floor && (got == nil || *got != want) {
						t.Fatalf("floor %d, id %d: %v", w.floor, id, got)
					}
				}
				if all.records != len(w.ring) {
					t.Fatalf("%d records counted, ring of %d", all.records, len(w.ring))
				}
			},
		})
	})
}
