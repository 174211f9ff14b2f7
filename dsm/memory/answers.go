package memory

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/netio"
)

// answers is what is to be sent together.
type answers struct {
	server  *Server
	ms      []netio.Message
	headers []byte // of ms, in a row
	refers  bool   // to memory that was read, so it has to be sent before that changes
	// The newest, to which the next one may be joined.
	last store.Answer
	to   netip.AddrPort
}

// maxAnswers is how many answers a batch of requests has at most.
const maxAnswers = batch * (1 + packet.MaxMore)

func newAnswers(s *Server) *answers {
	return &answers{server: s, ms: make([]netio.Message, 0, maxAnswers), headers: make([]byte, 0, maxAnswers*packet.HeaderSize)}
}

// add takes the answer to a request from an address.
func (o *answers) add(to netip.AddrPort, a *store.Answer) {
	if len(o.ms) > 0 && o.to == to && o.last.Join(a) {
		m := &o.ms[len(o.ms)-1]
		m.Buf = o.last.Header.Append(m.Buf[:0])
		return
	}
	o.last, o.to = *a, to
	for piece := range a.Datagrams() {
		o.put(&piece)
	}
}

// put takes one datagram.
func (o *answers) put(a *store.Answer) {
	at := len(o.headers)
	o.headers = a.Header.Append(o.headers)
	o.refers = o.refers || len(a.Data) > 0
	o.ms = append(o.ms, netio.Message{
		Buf: o.headers[at:len(o.headers):len(o.headers)], More: [netio.MaxMore][]byte{a.Data}, Remote: o.to, Local: a.From.Addr(),
	})
}

// send hands them to the network. One that it does not take is lost like any other;
// the client asks again.
func (o *answers) send() {
	for out := o.ms; len(out) > 0; {
		n, err := o.server.conn.WriteBatch(out)
		if err != nil {
			o.server.metrics.unsent.Add(1)
			n++
		}
		if n <= 0 {
			break
		}
		out = out[min(n, len(out)):]
	}
	o.ms, o.headers, o.refers, o.last = o.ms[:0], o.headers[:0], false, store.Answer{}
}
