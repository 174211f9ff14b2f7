//go:build linux

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/bifrost-rack/bifrost/p4switch/softswitch/offload"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// A packet to the control plane that the process has not handed over when it is
// killed is lost, and so is every one that comes while no process reads the TAP
// device. So an executor that outlives its process also writes each to a ring, which
// is pinned:
//
//	program ──▶ TAP ──▶ process ──▶ controller
//	       └──▶ ring                                 of heldTime, while the process lives
//	             └──▶ the next process ──▶ controller   Replay: all that are in it
//
// The process takes packets off the ring when they are older than heldTime. It hands
// packets over well within that time unless it does not keep up. The next one leaves
// everything in the ring until a controller is there, so a packet comes late, and
// those of the last heldTime before the end come again. A timer runs only while there are packets in the ring: who reads one
// from the TAP device sets it. A packet that found no room there is followed by some that are read.
const (
	// heldRing is the ring's room in bytes: 4,096 packets of up to a thousand bytes, 62
	// of 64 KiB. When it is full, packets go to the TAP device only.
	heldRing = 4 << 20
	// heldTime is how long packets stay in the ring while a process reads the TAP device.
	heldTime = 250 * time.Millisecond
	// heldEvery is how often older packets are taken off at most.
	heldEvery = 50 * time.Millisecond
)

// Layout of a record of the ring, the packet being as read from the TAP device but
// without the tag. The checksum that a sender left to its card is not written yet.
const (
	recordTime   = 0  // when, by the monotonic clock in nanoseconds   u64
	recordLen    = 8  // the packet's length, padding included         u32
	recordPad    = 12 // padding                                       u32
	recordSum    = 16 // where the checksum is to be written; beyond the packet if nowhere   i32
	recordFrom   = 20 // where the part begins that it sums            i32
	recordPacket = 24
)

// recordSizes are the sizes of records: the program must know the size of what it asks
// the ring for.
var recordSizes = []int32{1 << 10, 4 << 10, 16 << 10, recordPacket + maxFrame}

// hold writes the packet to the ring as it is sent to the TAP device.
func (g *gen) hold() {
	if g.objs.held == nil {
		return
	}
	held := g.label("held")
	for _, size := range recordSizes {
		next := g.label("longer")
		g.context(rTemp, ctxLen)
		g.emit(
			asm.JGT.Imm(rTemp, size-recordPacket, next),
			asm.JEq.Imm(rTemp, 0, held),
			asm.LoadMapPtr(asm.R1, g.objs.held.FD()),
			asm.Mov.Imm(asm.R2, size),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnRingbufReserve.Call(),
			asm.JEq.Imm(asm.R0, 0, held),
			asm.Mov.Reg(rEntry, asm.R0),
			asm.FnKtimeGetNs.Call(),
			asm.StoreMem(rEntry, recordTime, asm.R0, asm.DWord),
			asm.StoreMem(rEntry, recordLen, rTemp, asm.Word))
		g.load(asm.R0, stPad)
		g.emit(asm.StoreMem(rEntry, recordPad, asm.R0, asm.Word))
		// What is summed reaches to the packet's end, from which the place is counted.
		g.load(asm.R1, stWireLen)
		for at, word := range map[int16]int{recordSum: stSum, recordFrom: stSumFrom} {
			g.load(asm.R0, word)
			g.emit(asm.Add.Reg(asm.R0, rTemp), asm.Sub.Reg(asm.R0, asm.R1), asm.StoreMem(rEntry, at, asm.R0, asm.Word))
		}
		g.emit(
			asm.Mov.Reg(asm.R1, rCtx), asm.Mov.Imm(asm.R2, 0),
			asm.Mov.Reg(asm.R3, rEntry), asm.Add.Imm(asm.R3, recordPacket),
			asm.Mov.Reg(asm.R4, rTemp),
			asm.FnSkbLoadBytes.Call(),
			asm.Mov.Reg(asm.R1, rEntry),
			asm.Mov.Imm(asm.R2, 1), // BPF_RB_NO_WAKEUP: nobody waits
			asm.FnRingbufSubmit.Call())
		g.jump(held)
		g.mark(next)
	}
	g.mark(held)
}

// unheld is the packet of a record; ok is false if it is damaged.
func unheld(b []byte) (frame []byte, ok bool) {
	ne := binary.NativeEndian
	if len(b) < recordPacket {
		return nil, false
	}
	n, pad := int64(ne.Uint32(b[recordLen:])), int64(ne.Uint32(b[recordPad:]))
	if n > int64(len(b)-recordPacket) || pad > n {
		return nil, false
	}
	packet := append([]byte(nil), b[recordPacket:recordPacket+n]...)
	at, from := int64(int32(ne.Uint32(b[recordSum:]))), int64(int32(ne.Uint32(b[recordFrom:])))
	if from >= 0 && at >= from && at+2 <= n {
		h := offload.Header{Flags: offload.NeedsChecksum, CsumStart: uint16(from), CsumOffset: uint16(at - from)}
		if _, err := offload.Receive(h, packet, nil, func(offload.Header, []byte) {}); err != nil {
			return nil, false
		}
	}
	return packet[pad:], true
}

// held is the ring in this process.
type held struct {
	ring       *ebpf.Map
	taken      []byte // the consumer's page
	made, data []byte // the producer's page, and the records twice, one after the other

	timer *time.Timer // takes old packets off
	set   atomic.Bool // the timer is

	mu      sync.Mutex
	waiting bool // everything stays until Replay
}

// The kernel puts 8 bytes before a record: its length with two flags, then 4 more. The
// consumer's and the producer's page begin with a position of 64 bits.
const (
	ringHeader  = 8
	ringBusy    = 1 << 31 // the record is being written
	ringDiscard = 1 << 30
)

// makeHeld makes the ring, or inherits it. The first builds that could be taken over had
// none.
func (x *Executor) makeHeld() (*ebpf.Map, error) {
	return x.keptOrNew("held", &ebpf.MapSpec{Name: "held", Type: ebpf.RingBuf, MaxEntries: heldRing})
}

// openHeld maps the ring; with waiting, nothing is taken off it until replay has been called.
func openHeld(ring *ebpf.Map, waiting bool) (*held, error) {
	h := &held{ring: ring, waiting: waiting}
	h.timer = time.AfterFunc(time.Hour, h.expire)
	h.timer.Stop()
	page := unix.Getpagesize()
	var err, err2 error
	if h.taken, err = unix.Mmap(ring.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		h.made, err2 = unix.Mmap(ring.FD(), int64(page), page+2*heldRing, unix.PROT_READ, unix.MAP_SHARED)
	}
	if err = errors.Join(err, err2); err != nil {
		return nil, errors.Join(fmt.Errorf("ebpf: ring of packets to the control plane: %w", err), h.unmap())
	}
	h.data = h.made[page:]
	h.wind(heldTime) // a former process has left some, perhaps
	return h, nil
}

// unmap gives the memory back.
func (h *held) unmap() (err error) {
	for _, b := range [][]byte{h.taken, h.made} {
		if b != nil {
			err = errors.Join(err, unix.Munmap(b))
		}
	}
	return err
}

// close does nothing if there is no ring.
func (h *held) close() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer.Stop()
	err := h.unmap()
	h.taken, h.made, h.data = nil, nil, nil
	return err
}

// wind has the packets that are old in a while taken off the ring, unless some are to be sooner. It does nothing if there is no ring.
func (h *held) wind(after time.Duration) {
	if h != nil && h.set.CompareAndSwap(false, true) {
		h.timer.Reset(after)
	}
}

// expire takes off what is older than heldTime.
func (h *held) expire() {
	h.set.Store(false)
	h.mu.Lock()
	defer h.mu.Unlock()
	var clock unix.Timespec
	if h.waiting || h.data == nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &clock) != nil {
		return
	}
	pause := heldEvery
	end := h.records(func(b []byte) bool {
		if len(b) < recordPacket {
			return true
		}
		age := time.Duration(clock.Nano() - int64(binary.NativeEndian.Uint64(b[recordTime:])))
		if age <= heldTime {
			pause = max(heldTime-age, heldEvery)
		}
		return age > heldTime
	})
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&h.taken[0])), end)
	if end < atomic.LoadUint64((*uint64)(unsafe.Pointer(&h.made[0]))) {
		h.wind(pause)
	}
}

// records calls do with each record, until do is false or none is left that is whole,
// and tells where that is. Callers hold mu.
func (h *held) records(do func([]byte) bool) (end uint64) {
	end = atomic.LoadUint64((*uint64)(unsafe.Pointer(&h.taken[0])))
	last := atomic.LoadUint64((*uint64)(unsafe.Pointer(&h.made[0])))
	for end < last {
		at := end % heldRing
		size := atomic.LoadUint32((*uint32)(unsafe.Pointer(&h.data[at])))
		n := uint64(size &^ (ringBusy | ringDiscard))
		if size&ringBusy != 0 || n > heldRing {
			break
		}
		if size&ringDiscard == 0 && !do(h.data[at+ringHeader:at+ringHeader+n]) {
			break
		}
		end += (ringHeader + n + 7) &^ 7
	}
	return end
}

// replay calls do with the packets in the ring, oldest first, the first time that it is
// called, and lets them go. It tells how many there were, and whether a long one would
// have found no room.
func (h *held) replay(do func([]byte)) (n int, full bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.waiting || h.data == nil {
		return 0, false
	}
	h.waiting = false
	h.wind(heldTime)
	begin := atomic.LoadUint64((*uint64)(unsafe.Pointer(&h.taken[0])))
	end := h.records(func(b []byte) bool {
		if frame, ok := unheld(b); ok {
			do(frame)
			n++
		}
		return true
	})
	return n, end-begin+ringHeader+recordPacket+maxFrame > heldRing
}

// Replay implements datapath.Replayer.
func (x *Executor) Replay() {
	if x.held == nil {
		return
	}
	switch n, full := x.held.replay(x.sink.PacketIn); {
	case full:
		x.log.Warn("the controller gets the packets that came while it was away, but there was no room for all", "packets", n)
	case n > 0:
		x.log.Info("the controller gets the packets that came while it was away, or shortly before", "packets", n)
	}
}
