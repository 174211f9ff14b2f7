package wire

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// DefaultSwitchMAC is the switch's Ethernet address: hosts send all frames there.
var DefaultSwitchMAC = frame.MAC{0x02, 0xb1, 0xf0, 0xff, 0xff, 0xfe}

// Config is how a wire works. The zero value is a direct wire with defaults.
type Config struct {
	// MTU is the largest IPv6 packet in bytes; 0 stands for rackaddr.DefaultMTU.
	MTU int
	// SwitchMAC is where hosts send; zero stands for DefaultSwitchMAC.
	SwitchMAC frame.MAC
	// Schedule makes a scheduled wire; nil a direct one.
	Schedule *Schedule
	// OnFrame, if set, sees every frame (see Stage). On a scheduled wire it is
	// called in Run's goroutine and may cut links and crash hosts; on a direct
	// wire it is called concurrently. Frame.Data is lent for the call.
	OnFrame func(Frame)
}

// Net is one wire. Methods may be called concurrently.
type Net struct {
	cfg       Config
	input     atomic.Pointer[func(datapath.Port, []byte)]
	scheduler *scheduler // nil on a direct wire
	answers   chan answer
	seq       atomic.Uint64

	mu    sync.RWMutex
	hosts map[datapath.Port]*Host
	names map[string]*Host
}

// answer is an echo reply that waits to be sent on a direct wire: the switch
// that has just delivered the request must not be entered again from within.
type answer struct {
	host  *Host
	frame []byte
}

// New returns a wire without hosts. Connect it to a switch and Run it.
func New(cfg Config) *Net {
	if cfg.MTU == 0 {
		cfg.MTU = rackaddr.DefaultMTU
	}
	if cfg.SwitchMAC.IsZero() {
		cfg.SwitchMAC = DefaultSwitchMAC
	}
	n := &Net{
		cfg: cfg, answers: make(chan answer, answerQueue),
		hosts: map[datapath.Port]*Host{}, names: map[string]*Host{},
	}
	if cfg.Schedule != nil {
		n.scheduler = newScheduler(n, *cfg.Schedule)
	}
	return n
}

// Connect gives the wire its switch: input takes every frame that comes in at a
// port. The frame is lent for the call. Frames before Connect are lost.
func (n *Net) Connect(input func(port datapath.Port, frame []byte)) { n.input.Store(&input) }

// Output is for the switch: it sends a frame out of a port. The frame is lent
// for the call. A port without host is a cable that hangs loose.
func (n *Net) Output(port datapath.Port, frame []byte) {
	n.mu.RLock()
	h := n.hosts[port]
	n.mu.RUnlock()
	if h == nil {
		return
	}
	if n.scheduler != nil {
		frame = bytes.Clone(frame)
	}
	n.carry(h.link.down, orderKey{}, frame)
}

// Run drives the wire until ctx ends: arrivals on a scheduled one, echo replies
// on a direct one.
func (n *Net) Run(ctx context.Context) {
	if n.scheduler != nil {
		n.scheduler.run(ctx)
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-n.answers:
			n.carry(a.host.link.up, orderKey{}, a.frame)
		}
	}
}

// Host returns a host by name, nil if there is none.
func (n *Net) Host(name string) *Host {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.names[name]
}

// add puts a host on its port.
func (n *Net) add(h *Host) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if old := n.hosts[h.port]; old != nil {
		return fmt.Errorf("port %d: taken by host %s", h.port, old.name)
	}
	if n.names[h.name] != nil {
		return fmt.Errorf("host %s: there is one already", h.name)
	}
	h.index = len(n.hosts)
	n.hosts[h.port], n.names[h.name] = h, h
	return nil
}

// carry takes a frame onto a link. A scheduled wire keeps it: nobody may change it any more.
func (n *Net) carry(d *direction, key orderKey, b []byte) {
	switch {
	case !d.link.isUp():
		d.stats.Down.Add(1)
		n.tell(d, Lost, n.seq.Add(1), b)
	case n.scheduler != nil:
		n.scheduler.send(d, key, b)
	default:
		n.arrive(d, n.seq.Add(1), b)
	}
}

// arrive hands a frame over at the far end of a link.
func (n *Net) arrive(d *direction, seq uint64, b []byte) {
	n.tell(d, Arriving, seq, b)
	n.handOver(d, b)
	n.tell(d, Arrived, seq, b)
}

func (n *Net) handOver(d *direction, b []byte) {
	if !d.link.isUp() {
		d.stats.Down.Add(1)
		return
	}
	d.stats.Frames.Add(1)
	if !d.toSwitch {
		d.link.host.receive(b)
		return
	}
	if input := n.input.Load(); input != nil {
		(*input)(d.link.host.port, b)
	}
}

// maxDatagram is the largest UDP payload in bytes that the MTU allows.
func (n *Net) maxDatagram() int { return min(n.cfg.MTU-netio.Overhead, netio.MaxDatagram) }
