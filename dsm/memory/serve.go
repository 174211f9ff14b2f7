package memory

import (
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/netio"
)

// batch is how many datagrams the server takes at once. More save no time once
// a system call is shared by this many, and cost latency.
const batch = 8

// serve answers requests until the endpoint is closed.
func (s *Server) serve() error {
	in, out := make([]netio.Message, batch), make([]netio.Message, 0, batch)
	inBuf, outBuf := make([]byte, batch*netio.MaxDatagram), make([]byte, batch*netio.MaxDatagram)
	for {
		for i := range in {
			in[i].Buf = inBuf[i*netio.MaxDatagram : (i+1)*netio.MaxDatagram]
		}
		n, err := s.conn.ReadBatch(in)
		if err != nil {
			return err
		}
		out = out[:0]
		s.mu.Lock()
		for i := range in[:n] {
			buf := outBuf[i*netio.MaxDatagram : i*netio.MaxDatagram : (i+1)*netio.MaxDatagram]
			if m, ok := s.handle(&in[i], buf); ok {
				out = append(out, m)
			}
		}
		s.unlock()
		s.send(out)
	}
}

// handle answers one datagram, into buf.
func (s *Server) handle(m *netio.Message, buf []byte) (netio.Message, bool) {
	h, data, err := packet.Parse(m.Buf)
	if err != nil {
		s.metrics.drops[store.Malformed].Add(1)
		return netio.Message{}, false
	}
	r := store.Request{Node: m.Remote.Addr(), To: packet.FromAddr(m.Local), Header: h, Data: data}
	a, drop := s.store.Handle(&r)
	if drop != store.NotDropped {
		s.metrics.drops[drop].Add(1)
		return netio.Message{}, false
	}
	s.metrics.count(r.To.Op(), &a)
	buf = append(a.Header.Append(buf), a.Data...)
	return netio.Message{Buf: buf, Remote: m.Remote, Local: a.From.Addr()}, true
}

// send hands replies to the network. One that it does not take is lost like any
// other; the client asks again.
func (s *Server) send(out []netio.Message) {
	for len(out) > 0 {
		n, err := s.conn.WriteBatch(out)
		if err != nil {
			s.metrics.unsent.Add(1)
			n++
		}
		if n <= 0 {
			return
		}
		out = out[min(n, len(out)):]
	}
}
