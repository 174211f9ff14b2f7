package rpc

import (
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
)

// largeReader takes datagrams off a node's endpoint for parts. Parts come in the order
// in which they were asked for, so each is received where it belongs: behind its header,
// which lies elsewhere, into the message. What comes instead of it is moved away.
//
//	datagram:  header │ part              │ (nothing)
//	lies in:   heads  │ room of a message │ rest
type largeReader struct {
	conn     netio.Conn
	size     int // how many buffers it has; see reader
	messages [readBatch]netio.Message
	rooms    [readBatch]bulk.Room
	heads    [readBatch][bulk.HeaderSize]byte
	rest     [readBatch]*datagram
}

// next blocks for datagrams and returns how many there are; the first expected of the
// buffers have rooms.
func (r *largeReader) next(expected int) (count int, err error) {
	for i := range r.size {
		if r.rest[i] == nil {
			r.rest[i] = newDatagram()
		}
		m := &r.messages[i]
		m.Buf, m.More = r.heads[i][:], [netio.MaxMore][]byte{r.rest[i][:]}
		if i < expected {
			m.More = [netio.MaxMore][]byte{r.rooms[i].Bytes, r.rest[i][:]}
		}
	}
	count, err = r.conn.ReadBatch(r.messages[:r.size])
	for i := range min(count, expected) {
		r.clear(i)
	}
	if count == r.size {
		r.size = min(2*r.size, readBatch)
	}
	return count, err
}

// clear moves what is not the part that was expected out of its room, before others are
// put in their places.
func (r *largeReader) clear(i int) {
	m, room := &r.messages[i], &r.rooms[i]
	h, _, data, err := r.parse(i)
	key := bulk.Key{Peer: m.Remote.Addr(), Call: h.Call, Answer: h.Answer}
	if err == nil && h.Kind == bulk.Part && key == room.Key && h.Offset == room.Offset && len(data) == len(room.Bytes) {
		return
	}
	b := m.Append(nil)
	n := min(len(b), bulk.HeaderSize)
	m.Buf, m.More = b[:n], [netio.MaxMore][]byte{b[n:]}
}

// parse takes the i-th datagram apart.
func (r *largeReader) parse(i int) (bulk.Header, []bulk.Range, []byte, error) {
	m := &r.messages[i]
	body := m.More[0]
	if len(m.More[1]) > 0 { // it is longer than the room
		body = append(append(make([]byte, 0, m.Size()), m.More[0]...), m.More[1]...)
	}
	return bulk.Parse(m.Buf, body)
}

func (r *largeReader) free() {
	for i, d := range r.rest {
		if d != nil {
			freeDatagram(d)
			r.rest[i] = nil
		}
	}
}

// readLarge takes parts and pulls off the endpoint until it is closed.
func (n *Node) readLarge(r *largeReader) {
	defer n.readers.Done()
	for {
		count, err := r.next(n.large.expected(r.rooms[:r.size]))
		if err != nil {
			r.free()
			n.readFailed(err)
			return
		}
		for i := range count {
			n.receiveBulk(r, i)
		}
	}
}

// expected finds the rooms of the parts that come next, and returns how many it has found.
func (l *large) expected(rooms []bulk.Room) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.in.Rooms(rooms)
}

// receiveBulk takes one datagram.
func (n *Node) receiveBulk(r *largeReader, i int) {
	h, ranges, data, err := r.parse(i)
	if err != nil {
		n.stats.malformed.Add(1)
		return
	}
	key := bulk.Key{Peer: r.messages[i].Remote.Addr(), Call: h.Call, Answer: h.Answer}
	switch h.Kind {
	case bulk.Part:
		n.receivePart(key, &h, data)
	case bulk.Pull:
		n.servePull(key, &h, ranges)
	case bulk.Done:
		n.in.settle(key.Peer, h.Call)
	case bulk.Gone:
		n.endLarge(key, "its sender does not have it any more")
	}
}
