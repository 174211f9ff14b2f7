package softswitch

import (
	"fmt"
	"sync"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/gnmi"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt"
)

// linkState is what the kernel says of an interface; its zero value is one that is gone.
type linkState struct {
	enabled, up bool
	index       uint32
	mtu         uint16
	mac         string
}

// GNMIPorts implements gnmi.Switch. A port in the same process has a name made of its number.
func (s *Switch) GNMIPorts() []gnmi.Port {
	var out []gnmi.Port
	for _, p := range s.Ports() {
		g := gnmi.Port{
			Number: uint32(p.Port), Name: p.Name, Enabled: p.Up, Up: p.Up,
			InPackets: p.RxPackets, InOctets: p.RxBytes, InDiscards: p.RxOversize + p.RxOffload + p.RxShort + p.RxFull + p.Looped,
			OutPackets: p.TxPackets, OutOctets: p.TxBytes, OutDiscards: p.TxFull + p.TxTooLong + p.TxDown + p.TxOffload,
		}
		if p.Name == "" {
			g.Name = fmt.Sprintf("port%d", p.Port)
		} else { // the kernel's state is what PortsChanged is about; the executor may learn of it later
			l, _ := s.linkOf(p.Name)
			g.Enabled, g.Up, g.Index, g.MTU, g.MAC = l.enabled, l.up, l.index, l.mtu, l.mac
		}
		out = append(out, g)
	}
	return out
}

// EnablePort implements gnmi.Switch.
func (s *Switch) EnablePort(number uint32, enable bool) error {
	p := s.port(datapath.Port(number))
	if p == nil {
		return fmt.Errorf("port %d is not attached", number)
	}
	if p.name == "" {
		return s.SetUp(p.num, enable)
	}
	return s.enableLink(p.name, enable)
}

// PortsChanged implements gnmi.Switch.
func (s *Switch) PortsChanged() <-chan struct{} { return s.changes.next() }

// tellPort tells controllers of a port that is there, and everybody else that something has changed.
func (s *Switch) tellPort(p p4rt.Port) {
	s.srv.SetPort(p)
	s.changes.tell()
}

// changes tells any number of others that something has changed.
type changes struct {
	mu sync.Mutex
	ch chan struct{} // nil: nobody waits
}

// next is closed when something changes the next time.
func (c *changes) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ch == nil {
		c.ch = make(chan struct{})
	}
	return c.ch
}

func (c *changes) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ch != nil {
		close(c.ch)
		c.ch = nil
	}
}
