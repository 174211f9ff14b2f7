package memory

import (
	"bytes"
	"errors"

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
		if most == largeBatch {
			if err := s.receiveInto(buf, out); err != nil {
				return err
			}
		}
	}
}

// receiveInto has large writes that wait already received into their regions: their headers
// are looked at first, and say where the data belongs. It returns when the next datagram is
// none. For small ones the second system call costs more than the copy that it saves.
func (s *Server) receiveInto(scratch []byte, out *answers) error {
	peeker, ok := s.conn.(netio.Peeker)
	var err error
	for ok && err == nil {
		ok, err = s.receiveSome(peeker, scratch, out)
	}
	return err
}

// errChanged is that another datagram was received than the one that was looked at. It must
// not happen: the region that it was received into is damaged, so the server ends.
var errChanged = errors.New("memory server: a datagram changed between its header and its data")

// receiveSome is receiveInto for some datagrams, and reports whether to go on.
func (s *Server) receiveSome(peeker netio.Peeker, scratch []byte, out *answers) (more bool, err error) {
	s.mu.Lock()
	defer s.unlock()
	defer out.send()
	head, again := scratch[:packet.HeaderSize], scratch[packet.HeaderSize:2*packet.HeaderSize]
	for range largeBatch {
		m := netio.Message{Buf: head}
		size, ok, err := peeker.Peek(&m)
		if err != nil || !ok || size < large || packet.FromAddr(m.Local).Op() != packet.OpWrite {
			return false, err
		}
		h, _, err := packet.Parse(m.Buf)
		if err != nil {
			return false, nil //nolint:nilerr // it is dropped as any is
		}
		received := false
		receive := func(to [2][]byte) bool {
			one := []netio.Message{{Buf: again, More: to}}
			n, failed := s.conn.ReadBatch(one)
			if err = failed; err == nil && (n != 1 || one[0].Size() != size || one[0].Remote != m.Remote || !bytes.Equal(one[0].Buf, head)) {
				err = errChanged
			}
			received = true
			return err == nil
		}
		s.handle(&m, &store.Request{Node: m.Remote.Addr(), To: packet.FromAddr(m.Local), Header: h, Receive: receive, Size: size - packet.HeaderSize}, out)
		if received {
			s.metrics.inPlace.Add(uint64(size - packet.HeaderSize)) //nolint:gosec // not negative
		} else { // it is refused, or known
			receive([2][]byte{scratch[2*packet.HeaderSize:][:size-packet.HeaderSize]})
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
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
