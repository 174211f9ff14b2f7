package softswitch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch/afpacket"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch/offload"
)

// reopenEvery is how often an interface that has vanished is looked for.
const reopenEvery = 200 * time.Millisecond

// iface is a port on a Linux interface. One goroutine receives and runs frames
// through the executor; anybody transmits.
type iface struct {
	sw   *Switch
	p    *port
	sock atomic.Pointer[afpacket.Socket]
	up   atomic.Bool
	stop context.CancelFunc
	// begins starts the goroutine.
	begins func()
	done   sync.WaitGroup
}

// AttachInterface makes port num one on a Linux interface, in promiscuous mode.
// When the interface vanishes, the port stays and takes up the one that comes
// back under its name.
func (s *Switch) AttachInterface(num datapath.Port, name string) error {
	return s.AttachInterfaces([]Interface{{num, name}})
}

// AttachInterfaces makes several ports. After Restore they must be all of the
// switch's, since what the one before has attached elsewhere is detached: packets
// go to one executor or the other, and none is lost.
func (s *Switch) AttachInterfaces(all []Interface) error {
	if k := s.kernel(); k != nil {
		for _, i := range all {
			if s.port(i.Port) != nil {
				return fmt.Errorf("port %d is attached already", i.Port)
			}
			if err := k.Announce(i.Port, i.Name); err != nil {
				return err
			}
		}
	}
	if s.restored && s.kernel() == nil { // the Go executor takes over: the kernel must let go first
		if err := s.keep.sweep(nil); err != nil {
			return err
		}
	}
	for _, i := range all {
		if err := s.attachInterface(i.Port, i.Name); err != nil {
			return err
		}
	}
	if !s.restored {
		return nil
	}
	s.restored = false
	attached := map[string]bool{}
	for _, p := range s.Ports() {
		attached[strconv.Itoa(int(p.Port))] = true
	}
	return s.keep.sweep(attached)
}

// Interface is a Linux interface that is to be a port.
type Interface struct {
	Port datapath.Port
	Name string
}

func (s *Switch) attachInterface(num datapath.Port, name string) error {
	var (
		p   *port
		err error
	)
	// An executor may be committed meanwhile, which moves the ports that are there.
	s.moving.Lock()
	defer s.moving.Unlock()
	if k := s.kernel(); k != nil {
		if s.port(num) != nil {
			return fmt.Errorf("port %d is attached already", num)
		}
		p, err = s.attachKernel(k, num, name, false)
	} else {
		p, err = s.openInterface(num, name)
	}
	if err != nil {
		return err
	}
	if err := s.add(p); err != nil {
		p.out.(link).close()
		return err
	}
	p.out.(link).begin()
	return s.watchPort(num)
}

// openInterface makes a port on a packet socket, which receives once it begins.
func (s *Switch) openInterface(num datapath.Port, name string) (*port, error) {
	sock, err := afpacket.Open(name)
	if err != nil {
		return nil, fmt.Errorf("port %d: %w", num, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	f := &iface{sw: s, p: &port{num: num, name: name}, stop: stop}
	f.p.out = f
	f.sock.Store(sock)
	f.up.Store(true)
	f.begins = func() { f.done.Go(func() { f.run(ctx) }) }
	return f.p, nil
}

// begin implements link.
func (f *iface) begin() { f.begins() }

// end implements link.
func (f *iface) end() { f.stop() }

// close stops the port and returns when its goroutine has ended.
func (f *iface) close() {
	f.stop()
	f.done.Wait()
	_ = f.sock.Load().Close()
}

// refresh implements link.
func (f *iface) refresh() bool {
	f.p.n.rxFull.Add(f.sock.Load().KernelDrops())
	return f.up.Load() && f.sock.Load().Up()
}

// run receives until ctx ends, also over the interface's absences.
func (f *iface) run(ctx context.Context) {
	r := newReceiver(f)
	for ctx.Err() == nil {
		err := r.receive(f.sock.Load())
		switch {
		case err == nil, errors.Is(err, afpacket.ErrTimeout):
		case errors.Is(err, afpacket.ErrDown):
			f.recover(ctx)
		default:
			// A frame that the kernel cannot describe (a tunnel's super-packet).
			f.p.n.rxOffload.Add(1)
			f.sw.log.Debug("receive failed", "port", f.p.num, "interface", f.p.name, "error", err)
		}
	}
}

// recover waits for the interface to come back. One that is only down comes
// back by itself on the same socket.
func (f *iface) recover(ctx context.Context) {
	if !f.sock.Load().Gone() {
		return
	}
	f.up.Store(false)
	f.p.n.vanished.Add(1)
	f.sw.log.Warn("interface has vanished", "port", f.p.num, "interface", f.p.name)
	tick := time.NewTicker(reopenEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		sock, err := afpacket.Open(f.p.name)
		if err != nil {
			continue
		}
		old := f.sock.Swap(sock)
		_ = old.Close()
		f.up.Store(true)
		f.sw.log.Info("interface is back", "port", f.p.num, "interface", f.p.name)
		return
	}
}

// transmit implements transmitter for frames that come by themselves: from the
// controller, or from a port in the same process.
func (f *iface) transmit(frame []byte) {
	s := f.sock.Load()
	f.sent(len(frame), s.Send(afpacket.Frame{Data: padded(s, frame)}))
}

// padded is a frame that is long enough for an interface. It has been copied if it
// was not.
func padded(s *afpacket.Socket, frame []byte) []byte {
	if n := s.Shortest() - len(frame); n > 0 {
		return append(slices.Clip(frame), make([]byte, n)...)
	}
	return frame
}

// sent counts what became of a frame.
func (f *iface) sent(n int, err error) {
	c := &f.p.n
	switch {
	case err == nil:
		c.txPackets.Add(1)
		c.txBytes.Add(uint64(n))
	case errors.Is(err, afpacket.ErrTooLong):
		c.txTooLong.Add(1)
	case errors.Is(err, afpacket.ErrFull):
		c.txFull.Add(1)
	default:
		c.txDown.Add(1)
	}
}

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
