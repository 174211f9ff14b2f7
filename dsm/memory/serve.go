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
const large, largeBatch = 16 << 10, 4

// serve answers requests until the endpoint is closed.
func (s *Server) serve() error {
	in, out := make([]netio.Message, batch), newAnswers(s)
	size := min(s.cfg.Stack.MTU()-netio.Overhead, netio.MaxDatagram)
	buf := make([]byte, batch*size)
	for most := batch; ; {
		for i := range in[:most] {
			in[i] = netio.Message{Buf: buf[i*size : (i+1)*size]}
		}
		n, err := s.conn.ReadBatch(in[:most])
		if err != nil {
			return err
		}
		most = nextBatch(in[:n])
		s.answerAll(in[:n], out)
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

// answerAll answers datagrams.
func (s *Server) answerAll(in []netio.Message, out *answers) {
	s.mu.Lock()
	defer s.unlock()
	for i := range in {
		m := &in[i]
		if out.refers && packet.FromAddr(m.Local).Op() != packet.OpRead {
			out.send() // before what it refers to changes
		}
		h, data, err := packet.Parse(m.Buf)
		if err != nil {
			s.metrics.drops[store.Malformed].Add(1)
			continue
		}
		s.handle(m, &store.Request{Node: m.Remote.Addr(), To: packet.FromAddr(m.Local), Header: h, Data: data}, out)
	}
	s.ledgers.flush()
	out.send()
}

// handle answers one request. The answer may refer to the memory that was read.
func (s *Server) handle(m *netio.Message, r *store.Request, out *answers) {
	if r.To.Op() == packet.OpLedger {
		s.handleLedger(m, r, out)
		return
	}
	a, drop := s.store.Handle(r)
	if drop != store.NotDropped {
		s.metrics.drops[drop].Add(1)
		return
	}
	s.metrics.count(r.To.Op(), &a)
	out.add(m.Remote, &a)
}
