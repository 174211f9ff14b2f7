package softswitch

import (
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/softswitch/afpacket"
	"github.com/bifrost-rack/bifrost/p4/softswitch/offload"
)

// receiver is the state of an interface's receiving goroutine: frames that are
// emitted while a batch is worked off leave together.
type receiver struct {
	f       *iface
	frames  []afpacket.Frame
	scratch []byte
	emit    func(datapath.Port, []byte)

	header offload.Header // of the packet that is being processed
	out    []outFrame
	arena  []byte
}

// outFrame is an emitted frame that waits for the end of its batch.
type outFrame struct {
	to         *iface
	header     offload.Header
	begin, end int // in arena
}

func newReceiver(f *iface) *receiver {
	r := &receiver{f: f, frames: make([]afpacket.Frame, 0, afpacket.BatchSize)}
	r.emit = r.collect
	return r
}

// receive takes one batch and works it off.
func (r *receiver) receive(s *afpacket.Socket) error {
	got, err := s.Receive(r.frames)
	if err != nil {
		return err
	}
	c := &r.f.p.n
	c.rxOversize.Add(uint64(got.Oversize))
	for _, fr := range got.Frames {
		r.f.p.receive(fr.Data)
		if r.scratch, err = offload.Receive(fr.Header, fr.Data, r.scratch, r.packet); err != nil {
			c.rxOffload.Add(1)
		}
	}
	r.flush()
	return nil
}

// packet runs one packet through the executor.
func (r *receiver) packet(h offload.Header, frame []byte) {
	r.header = h
	r.f.sw.process(r.f.p, frame, r.emit)
}

// collect is the emit function of this goroutine: a frame is lent for the call
// only, so it is copied until the batch is done.
func (r *receiver) collect(num datapath.Port, frame []byte) {
	p := r.f.sw.leave(num, frame)
	if p == nil {
		return
	}
	to, ok := p.out.(*iface)
	if !ok {
		p.out.transmit(frame)
		return
	}
	begin := len(r.arena)
	r.arena = append(r.arena, frame...)
	h, ok := r.header.Resume(r.arena[begin:])
	if !ok {
		r.arena = r.arena[:begin]
		p.n.txOffload.Add(1)
		return
	}
	r.out = append(r.out, outFrame{to: to, header: h, begin: begin, end: len(r.arena)})
}

// flush sends what was collected: one call per port, in order.
func (r *receiver) flush() {
	var (
		fs   [afpacket.BatchSize]afpacket.Frame
		errs [afpacket.BatchSize]error
	)
	for i := range r.out {
		to, n := r.out[i].to, 0
		if to == nil {
			continue
		}
		sock := to.sock.Load()
		for j := i; j < len(r.out) && n < len(fs); j++ {
			if o := &r.out[j]; o.to == to {
				fs[n] = afpacket.Frame{Data: padded(sock, r.arena[o.begin:o.end]), Header: o.header}
				o.to = nil
				n++
			}
		}
		sock.SendAll(fs[:n], errs[:n])
		for k := range n {
			to.sent(len(fs[k].Data), errs[k])
		}
	}
	r.out, r.arena = r.out[:0], r.arena[:0]
}
