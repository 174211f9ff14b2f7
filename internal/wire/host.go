package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// HostConfig describes a host.
type HostConfig struct {
	Name string
	Port datapath.Port // of the switch
	// MAC is the host's Ethernet address; zero stands for 02:b1:f0:00 and the port.
	MAC frame.MAC
	// Address is the blade's own, which it has from the start.
	Address netip.Addr
}

// HostStats counts what a host did with the frames that reached it.
type HostStats struct {
	Received    atomic.Uint64 // datagrams put into an endpoint's queue
	Echoed      atomic.Uint64 // echo requests answered
	BadChecksum atomic.Uint64
	Malformed   atomic.Uint64 // not IPv6, wrong lengths, or a protocol that hosts do not speak
	Foreign     atomic.Uint64 // for another MAC or IPv6 address
	NoEndpoint  atomic.Uint64 // nobody is bound to the port
	QueueFull   atomic.Uint64
}

// Host is one blade on the wire: a netio.Stack. Everything it sends goes to the
// switch, also what is for itself. Methods may be called concurrently.
type Host struct {
	// Stats counts what became of frames.
	Stats HostStats

	net     *Net
	name    string
	port    datapath.Port
	mac     frame.MAC
	address netip.Addr
	link    *link
	index   int // orders hosts

	mu       sync.RWMutex
	accepted map[netip.Addr]bool
	prefixes []netip.Prefix
	conns    map[netip.AddrPort]*conn
	nextPort uint16 // for binds to port 0
}

var _ netio.Stack = (*Host)(nil)

// AddHost puts a host on a port of the switch, its link up.
func (n *Net) AddHost(cfg HostConfig) (*Host, error) {
	if cfg.MAC.IsZero() {
		cfg.MAC = frame.MAC{0x02, 0xb1, 0xf0, 0, byte(cfg.Port >> 8), byte(cfg.Port)}
	}
	h := &Host{net: n, name: cfg.Name, port: cfg.Port, mac: cfg.MAC, address: cfg.Address}
	h.forget()
	h.link = newLink(h)
	if s := n.scheduler; s != nil {
		h.link.up.dice = newDice(s.cfg.Seed, h.name, true)
		h.link.down.dice = newDice(s.cfg.Seed, h.name, false)
	}
	if err := n.add(h); err != nil {
		return nil, err
	}
	return h, nil
}

// Name is the host's name, Port its port of the switch.
func (h *Host) Name() string { return h.name }

// Port is the host's port of the switch.
func (h *Host) Port() datapath.Port { return h.port }

// MAC is the host's Ethernet address.
func (h *Host) MAC() frame.MAC { return h.mac }

// Address is the blade's own address.
func (h *Host) Address() netip.Addr { return h.address }

// MTU implements netio.Stack.
func (h *Host) MTU() int { return h.net.cfg.MTU }

// Impair sets what the link does to frames, to the switch and from it; only a
// scheduled wire does it.
func (h *Host) Impair(toSwitch, toHost Impairment) {
	h.link.up.impairment.Store(&toSwitch)
	h.link.down.impairment.Store(&toHost)
}

// LinkStats returns the counters of the link, to the switch and from it.
func (h *Host) LinkStats() (toSwitch, toHost *LinkStats) { return &h.link.up.stats, &h.link.down.stats }

// SetLink brings the link up or down. A link that goes down loses all that is on
// its way.
func (h *Host) SetLink(up bool) { h.link.set(up) }

// Crash is the blade's sudden end: the link goes down, endpoints end with
// net.ErrClosed, and all addresses but its own are forgotten. SetLink(true) is
// its next boot.
func (h *Host) Crash() {
	h.link.set(false)
	h.mu.Lock()
	old := h.conns
	h.forget()
	h.mu.Unlock()
	for _, c := range old {
		c.end()
	}
}

// forget brings the host to its state after boot. The caller holds h.mu, or is alone.
func (h *Host) forget() {
	h.accepted, h.prefixes, h.conns = map[netip.Addr]bool{}, nil, map[netip.AddrPort]*conn{}
	if h.address.IsValid() {
		h.accepted[h.address] = true
	}
}

// AddAddress implements netio.Stack.
func (h *Host) AddAddress(a netip.Addr) error {
	if !a.Is6() || a.IsUnspecified() {
		return fmt.Errorf("host %s: address %s: %w", h.name, a, syscall.EINVAL)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.accepted[a] = true
	return nil
}

// RemoveAddress implements netio.Stack.
func (h *Host) RemoveAddress(a netip.Addr) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.accepted, a)
	return nil
}

// AddLocalPrefix implements netio.Stack.
func (h *Host) AddLocalPrefix(p netip.Prefix) error {
	if !p.IsValid() || !p.Addr().Is6() {
		return fmt.Errorf("host %s: prefix %s: %w", h.name, p, syscall.EINVAL)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if p = p.Masked(); !slices.Contains(h.prefixes, p) {
		h.prefixes = append(h.prefixes, p)
	}
	return nil
}

// Accepts reports whether the host takes packets to address a.
func (h *Host) Accepts(a netip.Addr) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.accepts(a)
}

func (h *Host) accepts(a netip.Addr) bool {
	return h.accepted[a] || slices.ContainsFunc(h.prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Receive hands a frame over at once, as one that was late on its way. On a scheduled wire nobody may change it any more.
func (h *Host) Receive(frame []byte) { h.receive(frame) }

// SendRaw sends a datagram with any source, as a program with a raw socket can: no
// endpoint has to be bound to it, and another may be.
func (h *Host) SendRaw(src, dst netip.AddrPort, payload []byte) {
	u := frame.UDP6{DstMAC: h.net.cfg.SwitchMAC, SrcMAC: h.mac, Src: src, Dst: dst, Payload: payload}
	h.net.carry(h.link.up, orderKey{src}, u.Append(nil))
}

// receive takes a frame from the link.
func (h *Host) receive(b []byte) {
	p, err := frame.Parse(b)
	if err != nil {
		h.Stats.Malformed.Add(1)
		return
	}
	if p.DstMAC != h.mac && !p.DstMAC.Multicast() {
		h.Stats.Foreign.Add(1)
		return
	}
	if e, ok := p.Echo(); ok && !e.Reply {
		h.echo(e)
		return
	}
	u, err := p.UDP()
	switch {
	case errors.Is(err, frame.ErrChecksum):
		h.Stats.BadChecksum.Add(1)
	case err != nil:
		h.Stats.Malformed.Add(1)
	default:
		h.deliver(&u)
	}
}

// deliver puts a datagram into the queue of the endpoint that is bound to its
// destination, or else to its port.
func (h *Host) deliver(u *frame.UDP6) {
	h.mu.RLock()
	accepted := h.accepts(u.Dst.Addr())
	c := h.conns[u.Dst]
	if c == nil {
		c = h.conns[netip.AddrPortFrom(netip.IPv6Unspecified(), u.Dst.Port())]
	}
	h.mu.RUnlock()
	switch {
	case !accepted:
		h.Stats.Foreign.Add(1)
	case c == nil:
		h.Stats.NoEndpoint.Add(1)
	case !c.push(u):
		h.Stats.QueueFull.Add(1)
	default:
		h.Stats.Received.Add(1)
	}
}

// echo answers an echo request.
func (h *Host) echo(e frame.Echo) {
	if !h.Accepts(e.Dst) {
		h.Stats.Foreign.Add(1)
		return
	}
	reply := e.Answer()
	reply.DstMAC = h.net.cfg.SwitchMAC
	b := reply.Append(nil)
	if h.net.scheduler != nil {
		h.net.carry(h.link.up, orderKey{}, b)
		h.Stats.Echoed.Add(1)
		return
	}
	select {
	case h.net.answers <- answer{h, b}:
		h.Stats.Echoed.Add(1)
	default:
		h.Stats.QueueFull.Add(1)
	}
}
