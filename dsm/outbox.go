package dsm

import (
	"net/netip"
	"sync"

	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// outbox is datagrams made ready under the link's mutex, to be sent without it.
type outbox struct {
	ms   []netio.Message
	bufs [][]byte // to use again, one for each message sent so far at most
}

var outboxes = sync.Pool{New: func() any { return new(outbox) }}

func getOutbox() *outbox { return outboxes.Get().(*outbox) }

func putOutbox(o *outbox) {
	o.ms = o.ms[:0]
	outboxes.Put(o)
}

// add copies a packet.
func (o *outbox) add(p *transport.Packet) {
	i := len(o.ms)
	if i == len(o.bufs) {
		o.bufs = append(o.bufs, nil)
	}
	o.bufs[i] = append(p.Header.Append(o.bufs[i][:0]), p.Data...)
	o.ms = append(o.ms, netio.Message{Buf: o.bufs[i], Remote: netip.AddrPortFrom(p.To.Addr(), rackaddr.PortDSM)})
}

// send hands the datagrams to the network. One that it does not take is lost
// like any other, and the timer sends it again.
func (o *outbox) send(conn netio.Conn) {
	for rest := o.ms; len(rest) > 0; {
		n, err := conn.WriteBatch(rest)
		if err != nil {
			n++
		}
		if n <= 0 {
			return
		}
		rest = rest[min(n, len(rest)):]
	}
}
