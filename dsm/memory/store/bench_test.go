package store

import (
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// What the store itself costs a write: by a plain client, by an execution that
// has written there before, and by one that has not and is committed afterwards.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{64, 4 << 10, 64 << 10} {
		for _, how := range []string{"plain", "again", "first"} {
			b.Run(fmt.Sprintf("%d/%s", size, how), func(b *testing.B) {
				w := newWriter(b, size)
				if how != "plain" {
					w.request.Header.Execution[0] = 1
				}
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					w.write(b)
					if how == "first" {
						w.store.Commit(control.Run{Execution: control.ExecutionID{1}, Node: rackaddr.Node(1), Incarnation: 1}, 1)
					}
				}
			})
		}
	}
}

type writer struct {
	store   *Store
	request Request
}

// newWriter returns the writer of a region that has content.
func newWriter(b *testing.B, size int) *writer {
	w := &writer{store: newTestStore(1 << 20)}
	w.store.KeepUndo(1 << 20)
	w.request = Request{Node: rackaddr.Node(1), To: choose(w.store, rackaddr.Node(1)).With(dsmpacket.OpAlloc)}
	w.request.Header = dsmpacket.Header{Kind: dsmpacket.Request, Request: 1, Floor: 1, Incarnation: 1, Length: uint64(size)}
	a, _ := w.store.Handle(&w.request)
	w.request.To, w.request.Data = a.From.Bare().With(dsmpacket.OpWrite), make([]byte, size)
	w.write(b)
	return w
}

func (w *writer) write(b *testing.B) {
	w.request.Header.Request++
	w.request.Header.Floor = w.request.Header.Request
	if a, drop := w.store.Handle(&w.request); drop != NotDropped || a.Header.Status != fault.OK {
		b.Fatal(a.Header.Status, drop)
	}
}
