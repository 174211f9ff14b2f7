package afpacket

import (
	"sync"
	"unsafe"

	"github.com/bifrost-rack/bifrost/p4switch/softswitch/offload"
	"golang.org/x/sys/unix"
)

// outgoing is the memory of one send call.
type outgoing struct {
	headers [BatchSize][offload.HeaderLen]byte
	iovs    [BatchSize][2]unix.Iovec
	msgs    [BatchSize]unix.Mmsghdr
}

var outgoings = sync.Pool{New: func() any {
	o := &outgoing{}
	for i := range o.msgs {
		o.iovs[i][0].Base = &o.headers[i][0]
		o.iovs[i][0].SetLen(offload.HeaderLen)
		o.msgs[i].Hdr.Iov = &o.iovs[i][0]
		o.msgs[i].Hdr.SetIovlen(2)
	}
	return o
}}

// Send sends one frame. It does not wait: a frame for which there is no room is
// lost.
func (s *Socket) Send(f Frame) error {
	var one [1]error
	s.sendBatch([]Frame{f}, one[:])
	return one[0]
}

// SendAll sends frames in order, as Send does; errs, which is as long, tells
// what became of each.
func (s *Socket) SendAll(fs []Frame, errs []error) {
	for len(fs) > 0 {
		n := min(len(fs), BatchSize)
		s.sendBatch(fs[:n], errs[:n])
		fs, errs = fs[n:], errs[n:]
	}
}

func (s *Socket) sendBatch(fs []Frame, errs []error) {
	o := outgoings.Get().(*outgoing)
	defer outgoings.Put(o)
	for i, f := range fs {
		f.Header.Put(o.headers[i][:])
		o.iovs[i][1].Base = unsafe.SliceData(f.Data)
		o.iovs[i][1].SetLen(len(f.Data))
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for done := 0; done < len(fs); {
		n, err := s.sendmmsg(o.msgs[done:len(fs)])
		if err != nil { // the first of the rest has failed
			errs[done] = err
			done++
			continue
		}
		clear(errs[done : done+n])
		done += n
	}
	for i := range fs {
		o.iovs[i][1].Base = nil
	}
}

// sendmmsg sends messages from the front and returns how many; an error is the
// first one's.
func (s *Socket) sendmmsg(msgs []unix.Mmsghdr) (int, error) {
	if s.fd < 0 {
		return 0, ErrClosed
	}
	for {
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, ErrFull
		default:
			return 0, classify(errno)
		}
	}
}
