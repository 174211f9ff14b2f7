package softswitch

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/linkevents"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// portWatch tells controllers when the interfaces of ports go up and down. The kernel
// tells it that an interface has changed; it then asks the kernel for the state, so
// that a lost or late event does no harm.
type portWatch struct {
	sw     *Switch
	events *linkevents.Watch

	mu     sync.Mutex // held while a port is looked at, so that the newest state is told last
	ask    *netlink.Handle
	index  map[datapath.Port]int // of the interface when it was looked at last
	closed bool
}

// newPortWatch watches the interfaces of the caller's network namespace.
func newPortWatch(s *Switch) (*portWatch, error) {
	ask, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch interfaces: %w", err)
	}
	w := &portWatch{sw: s, ask: ask, index: map[datapath.Port]int{}}
	w.events, err = linkevents.Open(func(l linkevents.Link) {
		w.look(func(p *port) bool { return l.Is(p.name, w.index[p.num]) })
	}, s.log)
	if err != nil {
		ask.Close()
		return nil, err
	}
	return w, nil
}

// close ends it and returns when nothing of it runs any more.
func (w *portWatch) close() {
	if w == nil {
		return
	}
	w.events.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.ask.Close()
}

// errNoWatch is returned where there is no interface yet, or the switch is closed.
var errNoWatch = errors.New("softswitch: no interfaces")

// ofLink asks the kernel about an interface, in the network namespace where the ports were attached.
func (s *Switch) ofLink(name string, f func(*netlink.Handle, netlink.Link) error) error {
	s.mu.Lock()
	w := s.watch
	s.mu.Unlock()
	if w == nil {
		return errNoWatch
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errNoWatch
	}
	l, err := w.ask.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	return f(w.ask, l)
}

// linkOf is what the kernel says of an interface.
func (s *Switch) linkOf(name string) (out linkState, err error) {
	err = s.ofLink(name, func(_ *netlink.Handle, l netlink.Link) error {
		at := l.Attrs()
		out = linkState{
			enabled: at.Flags&net.FlagUp != 0, up: at.Flags&net.FlagRunning != 0,
			index: uint32(at.Index), mtu: uint16(min(at.MTU, 1<<16-1)), mac: at.HardwareAddr.String(), //nolint:gosec // small
		}
		return nil
	})
	return out, err
}

// enableLink sets an interface up or down.
func (s *Switch) enableLink(name string, enable bool) error {
	return s.ofLink(name, func(h *netlink.Handle, l netlink.Link) error {
		set := h.LinkSetDown
		if enable {
			set = h.LinkSetUp
		}
		if err := set(l); err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		return nil
	})
}

// queueDepths are how many packets wait in the root queueing disciplines of the ports' interfaces, as the kernel says. They
// are as they were if it cannot say for now.
func (s *Switch) queueDepths(were depths) (out depths, err error) {
	s.mu.Lock()
	w := s.watch
	s.mu.Unlock()
	if w == nil {
		return out, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return out, nil
	}
	all, err := w.ask.QdiscList(nil)
	switch {
	case errors.Is(err, netlink.ErrDumpInterrupted): // interfaces come or go meanwhile
		return were, nil
	case err != nil:
		return out, fmt.Errorf("queueing disciplines: %w", err)
	}
	waiting := map[int]uint32{} // by interface
	for _, q := range all {
		if at := q.Attrs(); at.Parent == netlink.HANDLE_ROOT && at.Statistics != nil && at.Statistics.Queue != nil {
			waiting[at.LinkIndex] = at.Statistics.Queue.Qlen
		}
	}
	for num, index := range w.index {
		if p := s.ports[num].Load(); p != nil && p.name != "" {
			out[num] = waiting[index]
		}
	}
	return out, nil
}

// look tells the state of some ports.
func (w *portWatch) look(which func(*port) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.sw.ports {
		p := w.sw.ports[i].Load()
		if p == nil || p.name == "" || !which(p) {
			continue
		}
		at, err := w.ask.LinkByName(p.name)
		var none netlink.LinkNotFoundError
		switch {
		case err == nil:
			w.index[p.num] = at.Attrs().Index
		case errors.As(err, &none):
			delete(w.index, p.num)
		default:
			w.sw.log.Warn("the state of an interface is unknown", "port", p.num, "interface", p.name, "error", err)
			continue
		}
		w.sw.tellPort(p4rt.Port{Number: p.num, Name: p.name, Up: err == nil && at.Attrs().Flags&net.FlagRunning != 0})
	}
}

// watchPort tells controllers the state of a port from now on.
func (s *Switch) watchPort(num datapath.Port) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.watch == nil {
		var err error
		if s.watch, err = newPortWatch(s); err != nil {
			return err
		}
	}
	s.watch.look(func(p *port) bool { return p.num == num })
	return nil
}
