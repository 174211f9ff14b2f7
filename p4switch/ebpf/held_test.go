//go:build linux

package ebpf

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch/afpacket"
)

// newHeld is a pair of which every packet goes to the control plane, port 2, and is held
// in the ring; and the far end of port 1.
func newHeld(t *testing.T) (*pair, *afpacket.Socket) {
	t.Helper()
	compare.Namespace(t)
	pins := filepath.Join(PinFS(), fmt.Sprintf("bifrost-test-%d", os.Getpid()))
	t.Cleanup(func() { _ = os.RemoveAll(pins) })
	p := newPairWith(t, load(t, "testdata/offload.json"), Config{CPUPort: 2, Links: pins})
	p.kernel.held.mu.Lock()
	p.kernel.held.waiting = true // as if it had inherited the ring
	p.kernel.held.mu.Unlock()
	compare.Veth(t, "near1", "far1")
	if err := p.kernel.AttachPort(1, "near1", false); err != nil {
		t.Fatal(err)
	}
	far, err := afpacket.Open("far1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	p.Both(t, func(x datapath.Datapath) error {
		return x.Multicast(7, []datapath.Replica{{Port: 2}, {Port: 2, Instance: 1}})
	})
	return p, far
}

// ringed are the packets in the ring, as the log of a sink tells them.
func (h *held) ringed() (lines []string) {
	var l compare.Log
	h.mu.Lock()
	defer h.mu.Unlock()
	h.records(func(b []byte) bool {
		if frame, ok := unheld(b); ok {
			l.PacketIn(frame)
		}
		return true
	})
	return l.Take()
}

// A packet that is replayed is the one that was read from the TAP device, whatever
// became of it in the program and whatever its sender left to the card.
func TestHeld_SamePackets(t *testing.T) {
	p, far := newHeld(t)
	r := unloaded{rand.New(rand.NewPCG(*seed, 11)), false}
	const sent = 300
	for range sent {
		h, f := r.frame()
		if err := far.Send(afpacket.Frame{Data: f, Header: h}); err != nil {
			t.Fatalf("%+v, frame of %d bytes %x: %v", h, len(f), head(f), err)
		}
	}
	var read []string
	for deadline := time.Now().Add(patience); ; {
		read = append(read, p.K.Take()...)
		slices.Sort(read)
		kept := p.kernel.held.ringed()
		slices.Sort(kept)
		if p.kernel.PortCounts(1).RxPackets == sent && len(read) > sent/2 && slices.Equal(read, kept) {
			break
		}
		if time.Now().After(deadline) {
			for i := range min(len(read), len(kept)) {
				if read[i] != kept[i] {
					t.Errorf("read %.300s\nkept %.300s", read[i], kept[i])
					break
				}
			}
			t.Fatalf("%d packets were read, %d kept (seed %d)", len(read), len(kept), *seed)
		}
		runtime.Gosched()
	}
	p.kernel.Replay()
	again := p.K.Take()
	slices.Sort(again)
	if !slices.Equal(again, read) {
		t.Errorf("%d packets were replayed, want %d", len(again), len(read))
	}
	if p.kernel.Replay(); len(p.K.Take()) != 0 {
		t.Error("a second replay tells packets again")
	}
}

// Packets do not stay in the ring, also the last ones of a burst. Nothing looks at a ring that is empty.
func TestHeld_Expires(t *testing.T) {
	p, far := newHeld(t)
	p.kernel.Replay() // a controller is there
	r := unloaded{rand.New(rand.NewPCG(*seed, 12)), false}
	for range 3 {
		before := p.kernel.PortCounts(1).RxPackets
		for range 20 {
			h, f := r.frame()
			if err := far.Send(afpacket.Frame{Data: f, Header: h}); err != nil {
				t.Fatal(err)
			}
		}
		await(t, func() bool {
			return p.kernel.PortCounts(1).RxPackets == before+20 && len(p.K.Take()) == 0 && len(p.kernel.held.ringed()) == 0 && !p.kernel.held.set.Load()
		})
	}
}

// await waits until something is so.
func await(t *testing.T, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("it has not happened")
		}
	}
}
