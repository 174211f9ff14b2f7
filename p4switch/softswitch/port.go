package softswitch

import (
	"fmt"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt"
)

// numPorts is how many port numbers there are: v1model's have 9 bits.
const numPorts = 512

// transmitter is the far side of a port: where emitted frames go.
type transmitter interface {
	// transmit sends a frame, which is lent for the call, and counts what became
	// of it. It must not block for long: it is part of the packet path.
	transmit(frame []byte)
}

// link is a transmitter with an interface behind it.
type link interface {
	// refresh brings counters that others keep up to date, and tells whether the
	// interface is up.
	refresh() bool
	// begin makes it receive; the port is in its place.
	begin()
	// end asks it to receive no more, and does not wait.
	end()
	// close ends it and returns when nothing of it runs any more.
	close()
}

// port is one port of the switch.
type port struct {
	num  datapath.Port
	name string
	out  transmitter
	cap  *capture // nil if nothing is captured
	n    counters

	// before is what the port had counted when it moved here from another executor;
	// nil if it did not.
	before atomic.Pointer[PortStats]
}

// counters are a port's counters. Received means taken off the wire, sent means
// handed to it.
type counters struct {
	rxPackets, rxBytes, txPackets, txBytes atomic.Uint64
	rxOversize, rxOffload, rxFull, rxShort atomic.Uint64
	txFull, txTooLong, txDown, txOffload   atomic.Uint64
	vanished, captureErrors, looped        atomic.Uint64
}

// PortStats is a snapshot of a port's counters.
type PortStats struct {
	Port datapath.Port `json:"port"`
	// Name is the interface's name; empty for a port in the same process.
	Name string `json:"interface"`
	// Up is false while the interface behind the port is gone or down.
	Up        bool   `json:"up"`
	RxPackets uint64 `json:"rx_packets"`
	RxBytes   uint64 `json:"rx_bytes"`
	TxPackets uint64 `json:"tx_packets"`
	TxBytes   uint64 `json:"tx_bytes"`

	RxOversize uint64 `json:"rx_oversize"` // frames longer than the switch takes
	RxOffload  uint64 `json:"rx_offload"`  // super-packets and unfinished checksums that cannot be judged
	RxShort    uint64 `json:"rx_short"`    // frames shorter than an Ethernet header (kernel executor)
	RxFull     uint64 `json:"rx_full"`     // frames that the kernel dropped because the switch was busy
	TxFull     uint64 `json:"tx_full"`     // frames for which the interface's queue had no room
	TxTooLong  uint64 `json:"tx_too_long"` // frames longer than the interface's MTU
	TxDown     uint64 `json:"tx_down"`     // frames for an interface that is down or gone
	TxOffload  uint64 `json:"tx_offload"`  // frames that offload keeps from leaving as the program has made them
	Looped     uint64 `json:"looped"`      // packets of which the program wanted too many copies (kernel executor)
	Vanished   uint64 `json:"vanished"`    // times that the interface was gone
}

func (p *port) stats() PortStats {
	up := true
	switch o := p.out.(type) {
	case link:
		up = o.refresh()
	case *function:
		up = !o.down.Load()
	}
	st := p.counted()
	st.Port, st.Name, st.Up = p.num, p.name, up
	return st
}

// counted are the counters as they were brought up to date last.
func (p *port) counted() (st PortStats) {
	if b := p.before.Load(); b != nil {
		st = *b
	}
	n := &p.n
	for to, from := range map[*uint64]*atomic.Uint64{
		&st.RxPackets: &n.rxPackets, &st.RxBytes: &n.rxBytes, &st.TxPackets: &n.txPackets, &st.TxBytes: &n.txBytes,
		&st.RxOversize: &n.rxOversize, &st.RxOffload: &n.rxOffload, &st.RxFull: &n.rxFull, &st.RxShort: &n.rxShort,
		&st.TxFull: &n.txFull, &st.TxTooLong: &n.txTooLong, &st.TxDown: &n.txDown, &st.TxOffload: &n.txOffload,
		&st.Looped: &n.looped, &st.Vanished: &n.vanished,
	} {
		*to += from.Load()
	}
	return st
}

// follows makes p go on counting where old, which counts no more, has stopped.
func (p *port) follows(old *port) {
	st := old.counted()
	p.before.Store(&st)
}

// receive counts a frame that has come in.
func (p *port) receive(frame []byte) {
	p.n.rxPackets.Add(1)
	p.n.rxBytes.Add(uint64(len(frame)))
}

// process runs a packet that came in at the port.
func (s *Switch) process(p *port, frame []byte, emit func(datapath.Port, []byte)) {
	if p.cap != nil {
		s.capture(p, p.cap.in, frame)
	}
	e := s.exec.Load()
	if e == nil {
		s.lost.Add(1)
		return
	}
	(*e).Process(p.num, frame, emit)
}

func (s *Switch) transmit(num datapath.Port, frame []byte) {
	if p := s.leave(num, frame); p != nil {
		p.out.transmit(frame)
	}
}

// leave is the port that a frame leaves by; nil if there is none.
func (s *Switch) leave(num datapath.Port, frame []byte) *port {
	p := s.port(num)
	if p == nil {
		s.lost.Add(1)
		return nil
	}
	if p.cap != nil {
		s.capture(p, p.cap.out, frame)
	}
	return p
}

// function is the transmitter of a port in the same process.
type function struct {
	p    *port
	out  func([]byte)
	down atomic.Bool
}

func (f *function) transmit(frame []byte) {
	f.p.n.txPackets.Add(1)
	f.p.n.txBytes.Add(uint64(len(frame)))
	f.out(frame)
}

// Attach makes port num one whose frames are handed to out, on the goroutine of
// whoever caused them; the frame is lent for the call. Frames come in by Input. The
// port is up until SetUp says otherwise.
func (s *Switch) Attach(num datapath.Port, out func(frame []byte)) error {
	p := &port{num: num}
	p.out = &function{p: p, out: out}
	if err := s.add(p); err != nil {
		return err
	}
	s.tellPort(p4rt.Port{Number: num, Up: true})
	return nil
}

// SetUp tells controllers that a port in the same process is up or down, as the
// kernel does for an interface. Frames go in and out all the same.
func (s *Switch) SetUp(num datapath.Port, up bool) error {
	p := s.port(num)
	if p == nil || p.name != "" {
		return fmt.Errorf("port %d is not one in this process", num)
	}
	p.out.(*function).down.Store(!up)
	s.tellPort(p4rt.Port{Number: num, Up: up})
	return nil
}

// Detach removes a port; what is under way to it is finished first.
func (s *Switch) Detach(num datapath.Port) error {
	s.moving.Lock()
	defer s.moving.Unlock()
	s.mu.Lock()
	p := s.port(num)
	if p == nil {
		s.mu.Unlock()
		return fmt.Errorf("port %d is not attached", num)
	}
	s.ports[num].Store(nil)
	s.mu.Unlock()
	p.close()
	s.srv.RemovePort(num)
	s.changes.tell()
	return nil
}

// close returns when what is under way to the port has been finished.
func (p *port) close() {
	if l, ok := p.out.(link); ok {
		l.close()
	}
	p.cap.close()
}

// add puts a port into its place.
func (s *Switch) add(p *port) error {
	if p.num >= DropPort || p.num == s.cfg.CPUPort && p.num != 0 {
		return fmt.Errorf("port %d cannot be attached: only 0 to %d can, and not the CPU port %d", p.num, DropPort-1, s.cfg.CPUPort)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.ports[p.num].Load() != nil:
		return fmt.Errorf("port %d is attached already", p.num)
	case p.name == "" && s.kernel() != nil:
		return fmt.Errorf("port %d: %w", p.num, errLocal)
	}
	var err error
	if p.cap, err = s.newCapture(p); err != nil {
		return fmt.Errorf("port %d: %w", p.num, err)
	}
	s.ports[p.num].Store(p)
	return nil
}

// Ports are the counters of all ports, by number.
func (s *Switch) Ports() []PortStats {
	var out []PortStats
	for i := range s.ports {
		if p := s.ports[i].Load(); p != nil {
			out = append(out, p.stats())
		}
	}
	return out
}
