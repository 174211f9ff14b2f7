package memory

import (
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/netio"
)

// batch is how many datagrams the server takes at once. More save no time once
// a system call is shared by this many, and cost latency.
const batch = 8

// Datagrams from large on are taken fewer at once: while the server copies some, the
// client makes the next ones.
const large, largeBatch = 16 << 10, 2

// serve answers requests until the endpoint is closed.
func (s *Server) serve() error {
	in, out := make([]netio.Message, batch), make([]netio.Message, 0, batch)
	size := min(s.cfg.Stack.MTU()-netio.Overhead, netio.MaxDatagram)
	inBuf, outBuf := make([]byte, batch*size), make([]byte, batch*packet.HeaderSize)
	for most := batch; ; {
		for i := range in[:most] {
			in[i] = netio.Message{Buf: inBuf[i*size : (i+1)*size]}
		}
		n, err := s.conn.ReadBatch(in[:most])
		if err != nil {
			return err
		}
		most = nextBatch(in[:n])
		s.mu.Lock()
		out, refers := out[:0], false
		for i := range in[:n] {
			if refers && packet.FromAddr(in[i].Local).Op() != packet.OpRead {
				s.send(out) // before what they refer to changes
				out, refers = out[:0], false
			}
			buf := outBuf[i*packet.HeaderSize : i*packet.HeaderSize : (i+1)*packet.HeaderSize]
			if m, ok := s.handle(&in[i], buf); ok {
				out = append(out, m)
				refers = refers || len(m.More[0]) > 0
			}
		}
		s.send(out)
		s.unlock()
	}
}

// nextBatch is how many datagrams to take after these.
func nextBatch(ms []netio.Message) int {
	for i := range ms {
		if len(ms[i].Buf) >= large {
			return largeBatch
		}
	}
	return batch
}

// handle answers one datagram, with a header in buf. The answer refers to the memory
// that was read, so it has to be sent before that changes.
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
	return netio.Message{
		Buf: a.Header.Append(buf), More: [netio.MaxMore][]byte{a.Data}, Remote: m.Remote, Local: a.From.Addr(),
	}, true
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
