package afpacket

import (
	"encoding/binary"
	"unsafe"

	"github.com/bifrost-rack/bifrost/p4switch/softswitch/offload"
	"golang.org/x/sys/unix"
)

const (
	macs = 12 // bytes of the two addresses, before a VLAN tag
	tag  = 4  // bytes of a VLAN tag
	// slot holds a frame with a gap for the tag that the kernel may have taken off.
	slot = MaxFrame + tag
	// control holds one PACKET_AUXDATA message.
	control = unix.SizeofCmsghdr + 32
	// parts are the buffers that a frame is received into: vnet header,
	// addresses, and what follows behind the gap.
	parts = 3
)

// batch is the memory of one receive call; it is reused.
type batch struct {
	headers [BatchSize][offload.HeaderLen]byte
	control [BatchSize][control]byte
	iovs    [BatchSize][parts]unix.Iovec
	msgs    [BatchSize]unix.Mmsghdr
	from    [BatchSize]unix.RawSockaddrLinklayer
	data    []byte
}

func newBatch() *batch {
	b := &batch{data: make([]byte, BatchSize*slot)}
	for i := range b.msgs {
		d := b.slot(i)
		v := &b.iovs[i]
		v[0].Base = &b.headers[i][0]
		v[0].SetLen(offload.HeaderLen)
		v[1].Base = &d[0]
		v[1].SetLen(macs)
		v[2].Base = &d[macs+tag]
		v[2].SetLen(len(d) - macs - tag)
	}
	return b
}

func (b *batch) slot(i int) []byte { return b.data[i*slot : (i+1)*slot] }

// reset makes the messages ready for a receive, which changes them.
func (b *batch) reset(n int) {
	for i := range b.msgs[:n] {
		h := &b.msgs[i].Hdr
		h.Iov = &b.iovs[i][0]
		h.SetIovlen(parts)
		h.Control = &b.control[i][0]
		h.SetControllen(control)
		h.Flags = 0
		h.Name = (*byte)(unsafe.Pointer(&b.from[i]))
		h.Namelen = unix.SizeofSockaddrLinklayer
	}
}

// frame is the i-th received frame; ok is false if it did not fit.
func (b *batch) frame(i int) (f Frame, ok bool) {
	m := &b.msgs[i]
	d := b.slot(i)
	n := int(m.Len) - offload.HeaderLen
	if m.Hdr.Flags&unix.MSG_TRUNC != 0 || n < 0 {
		return Frame{}, false
	}
	f.Header = offload.Parse(b.headers[i][:])
	f.Outgoing = b.from[i].Pkttype == unix.PACKET_OUTGOING
	if n <= macs {
		f.Data = d[:n]
		return f, true
	}
	tci, tpid, tagged := vlan(b.control[i][:m.Hdr.Controllen])
	if !tagged {
		copy(d[tag:], d[:macs])
		f.Data = d[tag : n+tag]
		return f, true
	}
	binary.BigEndian.PutUint16(d[macs:], tpid)
	binary.BigEndian.PutUint16(d[macs+2:], tci)
	f.Data = d[:n+tag]
	if f.Header.Flags&offload.NeedsChecksum != 0 {
		f.Header.CsumStart += tag
		f.Header.HdrLen += tag
	}
	return f, true
}

// vlan reads the tag that the kernel took off a frame from its auxiliary data.
func vlan(b []byte) (tci, tpid uint16, ok bool) {
	if len(b) < unix.SizeofCmsghdr+int(unsafe.Sizeof(unix.TpacketAuxdata{})) {
		return 0, 0, false
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	if h.Level != unix.SOL_PACKET || h.Type != unix.PACKET_AUXDATA {
		return 0, 0, false
	}
	aux := (*unix.TpacketAuxdata)(unsafe.Pointer(&b[unix.SizeofCmsghdr]))
	if aux.Status&unix.TP_STATUS_VLAN_VALID == 0 {
		return 0, 0, false
	}
	tpid = unix.ETH_P_8021Q
	if aux.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
		tpid = aux.Vlan_tpid
	}
	return aux.Vlan_tci, tpid, true
}

// Received says what a receive has brought.
type Received struct {
	// Frames are valid until the next receive.
	Frames []Frame
	// Oversize counts frames that were longer than MaxFrame and are lost.
	Oversize int
}

// Receive waits for at least one frame and takes what is there, up to BatchSize
// frames. buf is reused for the result.
func (s *Socket) Receive(buf []Frame) (Received, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.fd < 0 {
		return Received{}, ErrClosed
	}
	b := s.rx
	b.reset(BatchSize)
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&b.msgs[0])), BatchSize, unix.MSG_WAITFORONE, 0, 0)
	if errno != 0 {
		return Received{}, classify(errno)
	}
	r := Received{Frames: buf[:0]}
	for i := range int(n) {
		if f, ok := b.frame(i); ok {
			r.Frames = append(r.Frames, f)
		} else {
			r.Oversize++
		}
	}
	return r, nil
}

// classify gives the kernel's errors their meaning here.
func classify(e unix.Errno) error {
	switch e {
	case unix.EAGAIN, unix.EINTR:
		return ErrTimeout
	case unix.ENETDOWN, unix.ENXIO, unix.ENODEV:
		return ErrDown
	case unix.ENOBUFS, unix.ENOMEM:
		return ErrFull
	case unix.EMSGSIZE:
		return ErrTooLong
	default:
		return e
	}
}
