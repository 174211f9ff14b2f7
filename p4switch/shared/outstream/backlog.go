package outstream

import (
	"slices"

	"google.golang.org/protobuf/proto"
)

// NoFlow is the flow of messages that come from no port. It loses nothing to others.
const NoFlow = 0

const (
	// quantum is how many bytes a flow sends before the next one has its turn.
	quantum = 2 << 10
	// overhead is how many bytes more a message counts, since it costs its receiver work
	// however short it is.
	overhead = 256
)

// backlog is messages that wait, a queue for each flow. The queues take turns by deficit
// round robin, so what a flow sends delays its own messages, and displaces only these.
type backlog struct {
	maxMessages, maxBytes int

	flows    map[uint32]*flow
	turns    []*flow // those with messages; the first has its turn
	messages int
	bytes    int
}

// flow is one queue.
type flow struct {
	id     uint32
	queue  []queued
	takes  int // bytes of the queue, overhead included
	credit int // of them it may send in this turn
}

// queued is a message in the backlog with its rough size in bytes.
type queued struct {
	msg  proto.Message
	size int
}

// offer queues a message of a flow, if there is room for it. displaced are the messages of
// others that made room: the last ones of those flows that take most.
func (b *backlog) offer(id uint32, m queued) (ok bool, displaced uint64) {
	for b.full(m.size) {
		if !b.displace(id, m.size) {
			return false, displaced
		}
		displaced++
	}
	b.push(id, m)
	return true, displaced
}

// full reports whether there is no room for a message of a size.
func (b *backlog) full(size int) bool {
	return b.messages >= b.maxMessages || b.bytes+size > b.maxBytes
}

// displace drops the last message of the flow that takes most room, if it takes more than
// the flow with this id would with a message of a size.
func (b *backlog) displace(id uint32, size int) bool {
	var most *flow
	for _, f := range b.turns {
		if f.id != NoFlow && (most == nil || f.takes > most.takes) {
			most = f
		}
	}
	own := size + overhead
	if f := b.flows[id]; f != nil {
		own += f.takes
	}
	if most == nil || most.takes <= own {
		return false
	}
	last := len(most.queue) - 1
	m := most.queue[last]
	most.queue[last] = queued{}
	most.queue = most.queue[:last]
	b.gone(most, m)
	return true
}

// push queues a message of a flow, whether there is room or not.
func (b *backlog) push(id uint32, m queued) {
	f := b.flows[id]
	if f == nil {
		f = &flow{id: id}
		if b.flows == nil {
			b.flows = map[uint32]*flow{}
		}
		b.flows[id] = f
		b.turns = append(b.turns, f)
	}
	f.queue = append(f.queue, m)
	f.takes += m.size + overhead
	b.messages++
	b.bytes += m.size
}

// next takes off the message that goes next. There must be one.
func (b *backlog) next() proto.Message {
	f := b.turns[0]
	for f.credit < f.queue[0].size+overhead {
		f.credit += quantum
		b.turns = append(b.turns[1:], f)
		f = b.turns[0]
	}
	m := f.queue[0]
	f.credit -= m.size + overhead
	f.queue[0] = queued{}
	f.queue = f.queue[1:]
	b.gone(f, m)
	return m.msg
}

// remove takes off the first message of a flow that is as the function says.
func (b *backlog) remove(id uint32, is func(proto.Message) bool) {
	f := b.flows[id]
	if f == nil {
		return
	}
	if i := slices.IndexFunc(f.queue, func(q queued) bool { return is(q.msg) }); i >= 0 {
		m := f.queue[i]
		f.queue = slices.Delete(f.queue, i, i+1)
		b.gone(f, m)
	}
}

// gone counts a message that has left its queue. A flow without messages has no credit.
func (b *backlog) gone(f *flow, m queued) {
	f.takes -= m.size + overhead
	b.messages--
	b.bytes -= m.size
	if len(f.queue) == 0 {
		delete(b.flows, f.id)
		b.turns = slices.DeleteFunc(b.turns, func(o *flow) bool { return o == f })
	}
}
