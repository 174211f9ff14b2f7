package rpc

import (
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/rpc/packet"
)

// reader takes datagrams off one endpoint. Its buffers are its own until taken. It
// begins with one, and has more when they have all been filled at once: a node with
// thousands of services has a reader for each.
type reader struct {
	conn     netio.Conn
	size     int // how many buffers it has
	messages [readBatch]netio.Message
	buffers  [readBatch]*datagram
}

func newReader(conn netio.Conn) *reader { return &reader{conn: conn, size: 1} }

// next blocks for datagrams and returns how many there are. It fails with
// net.ErrClosed when the endpoint has been closed.
func (r *reader) next() (int, error) {
	for i := range r.size {
		if r.buffers[i] == nil {
			r.buffers[i] = newDatagram()
		}
		r.messages[i].Buf = r.buffers[i][:]
	}
	n, err := r.conn.ReadBatch(r.messages[:r.size])
	if n == r.size {
		r.size = min(2*r.size, readBatch)
	}
	return n, err
}

// take gives the i-th buffer away.
func (r *reader) take(i int) *datagram {
	d := r.buffers[i]
	r.buffers[i] = nil
	return d
}

func (r *reader) free() {
	for i, d := range r.buffers {
		if d != nil {
			freeDatagram(d)
			r.buffers[i] = nil
		}
	}
}

// receiveAnswer takes the i-th datagram that the node's endpoint has received: an
// answer to one of its calls, or an acknowledgement. It reports whether a
// goroutine waits for it.
func (n *Node) receiveAnswer(r *reader, i int) bool {
	m, err := packet.Parse(r.messages[i].Buf)
	if err != nil {
		n.stats.malformed.Add(1)
		return false
	}
	switch m.Type {
	case packet.Reply, packet.Exception:
		return n.complete(r, i, m)
	case packet.Ack:
		return n.acknowledged(r, i, m)
	default:
		n.stats.malformed.Add(1)
	}
	return false
}

// readFailed ends the node when one of its endpoints fails of its own accord; also
// when somebody else has closed it, as a blade that crashes does. What the node
// itself has closed, because it has ended, is no news.
func (n *Node) readFailed(err error) {
	n.fail(&Error{Code: Unavailable, Op: "node " + n.self.Name, Msg: "receive", Err: err})
}
