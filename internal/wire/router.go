package wire

import (
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// Router is the simplest switch, for unit tests: it knows every host's addresses
// and sends each packet to the first host that accepts its destination. It
// protects nothing. Connect(net.Router()) puts it in place.
func (n *Net) Router() func(datapath.Port, []byte) {
	return func(_ datapath.Port, b []byte) {
		p, err := frame.Parse(b)
		if err != nil {
			return
		}
		h := n.accepting(p)
		if h == nil {
			return
		}
		p.DstMAC, p.SrcMAC = h.mac, n.cfg.SwitchMAC
		if p.HopLimit <= 1 {
			return
		}
		p.HopLimit--
		buf := grab(len(b))
		defer release(buf)
		*buf = p.Append((*buf)[:0])
		n.Output(h.port, *buf)
	}
}

// accepting returns the host that takes a packet.
func (n *Net) accepting(p frame.Packet) *Host {
	n.mu.RLock()
	defer n.mu.RUnlock()
	var found *Host
	for _, h := range n.hosts {
		if h.Accepts(p.Dst) && (found == nil || h.index < found.index) {
			found = h
		}
	}
	return found
}
