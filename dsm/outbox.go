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
	bufs [][]byte     // to use again, one for each message sent so far at most
	refs []*operation // whose buffers messages refer to
}

// referFrom is from how many bytes on data is sent from where it stands. To copy
// less costs no more than to look after it.
const referFrom = 16 << 10

var outboxes = sync.Pool{New: func() any { return new(outbox) }}

func getOutbox() *outbox { return outboxes.Get().(*outbox) }

func putOutbox(o *outbox) {
	clear(o.ms)
	o.ms = o.ms[:0]
	outboxes.Put(o)
}

// add takes a packet. Small data is copied.
func (o *outbox) add(p *transport.Packet) {
	i := len(o.ms)
	if i == len(o.bufs) {
		o.bufs = append(o.bufs, nil)
	}
	m := netio.Message{Remote: netip.AddrPortFrom(p.To.Addr(), rackaddr.PortDSM)}
	o.bufs[i] = p.Header.Append(o.bufs[i][:0])
	if p.First != nil && len(p.Data) >= referFrom {
		m.More[0] = p.Data
		op := p.First.Tag.(*operation)
		op.sending.Add(1)
		o.refs = append(o.refs, op)
	} else {
		o.bufs[i] = append(o.bufs[i], p.Data...)
	}
	m.Buf = o.bufs[i]
	o.ms = append(o.ms, m)
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
			break
		}
		rest = rest[min(n, len(rest)):]
	}
	for i, op := range o.refs {
		op.sending.Done()
		o.refs[i] = nil
	}
	o.refs = o.refs[:0]
}
