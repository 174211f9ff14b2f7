package rpc

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/packet"
)

// outgoing is the calling side of a node: the core, and the timer that drives it.
type outgoing struct {
	mu    sync.Mutex
	core  *endpoint.Caller
	err   error // why no call can begin any more
	timer *time.Timer
	armed time.Duration // when the timer fires; 0 while it does not
	// detached holds a token for each one-way and each call that lends memory:
	// the runtime may have to finish them when nobody waits any more.
	detached chan struct{}
}

// pending is a call that is out. It belongs to the goroutine that waits for it
// or, when detached, to the core.
type pending struct {
	endpoint.Call
	datagram []byte
	to       netio.Message // scratch for sending: its address
	out      [1]netio.Message
	token    bool // holds one of outgoing.detached
	detached bool // nobody waits
	// The answer, valid once ready has been received from.
	ready  chan struct{}
	answer packet.Message
	buffer *datagram // what answer lies in
	err    error
}

var pendings = sync.Pool{New: func() any {
	p := &pending{ready: make(chan struct{}, 1)}
	p.Tag = p
	return p
}}

// release ends what a call holds; nobody may use it any more.
func (n *Node) release(p *pending) {
	if p.token {
		<-n.out.detached
	}
	if p.buffer != nil {
		freeDatagram(p.buffer)
	}
	ready := p.ready
	*p = pending{ready: ready}
	p.Tag = p
	pendings.Put(p)
}

func newOutgoing() outgoing {
	return outgoing{core: endpoint.NewCaller(randomUint64), detached: make(chan struct{}, maxDetached)}
}

func randomUint64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

// begin registers a call and returns its datagram, which is complete with the id
// that the call gets. A zero id asks for one of a session. A detached call is the
// core's from now on.
func (n *Node) begin(p *pending, c *codec, h *packet.Header, id packet.ID) ([]byte, error) {
	o := &n.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return nil, o.err
	}
	now := n.now()
	if id.IsZero() {
		o.core.Begin(now, &p.Call)
		h.Flags |= packet.FlagSession
	} else if !o.core.BeginAs(now, &p.Call, id) {
		return nil, &Error{Code: Nondeterminism, Msg: "two calls with the same id " + id.String()}
	}
	h.Call, h.Floor = p.ID, p.Floor
	p.datagram = c.datagram(h)
	if p.detached {
		p.datagram = slices.Clone(p.datagram)
	}
	o.arm(now, p.Due(), n.tick)
	n.stats.calls.Add(1)
	return p.datagram, nil
}

// end gives a call up. It reports false if the call has been answered: the
// answer is in p, or about to be.
func (n *Node) end(p *pending) bool {
	n.out.mu.Lock()
	defer n.out.mu.Unlock()
	return n.out.core.End(&p.Call)
}

// detach leaves a call that lends memory to the runtime: its lease ends with its
// answer, so somebody must go on asking for it. The callee is told not to begin
// if it has not yet. It reports false if the call has been answered.
func (n *Node) detach(p *pending) bool {
	o := &n.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.core.Detach(&p.Call, 0) {
		return false
	}
	p.detached = true
	p.datagram = slices.Clone(p.datagram)
	packet.SetTimeout(p.datagram, 1)
	return true
}

// complete hands an answer to the goroutine that waits for it.
func (n *Node) complete(r *reader, i int, m packet.Message) {
	n.out.mu.Lock()
	call := n.out.core.Receive(n.now(), &m)
	n.out.mu.Unlock()
	if call == nil {
		n.stats.duplicates.Add(1)
		return
	}
	p := call.Tag.(*pending)
	if p.detached {
		n.release(p)
		return
	}
	p.answer, p.buffer = m, r.take(i)
	p.ready <- struct{}{}
}

// reserve takes a token for a call that the runtime may have to finish alone.
func (n *Node) reserve(ctx context.Context, p *pending) error {
	select {
	case n.out.detached <- struct{}{}:
		p.token = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-n.done:
		return n.failure()
	}
}

// arm sets the timer to fire at due, unless it fires earlier already. The caller
// holds the lock. A timer that fires too early finds nothing to do and is set
// again, so on the fast path, where calls come and go before, this compares.
func (o *outgoing) arm(now, due time.Duration, tick func()) {
	if o.armed != 0 && o.armed <= due {
		return
	}
	o.armed = due
	if o.timer == nil {
		o.timer = time.AfterFunc(due-now, tick)
	} else {
		o.timer.Reset(due - now)
	}
}

// tick sends again what is due.
func (n *Node) tick() {
	o := &n.out
	o.mu.Lock()
	if o.err != nil {
		o.mu.Unlock()
		return
	}
	now := n.now()
	o.armed = 0
	resend, expired := o.core.Tick(now, nil, nil)
	var out []netio.Message
	for _, call := range resend {
		p := call.Tag.(*pending)
		m := p.to
		m.Buf = slices.Clone(p.datagram) // its owner may be done with it before it is sent
		out = append(out, m)
	}
	if due, ok := o.core.Due(); ok {
		o.arm(now, due, n.tick)
	}
	o.mu.Unlock()
	for _, call := range expired {
		n.release(call.Tag.(*pending))
	}
	if len(out) > 0 {
		n.stats.resent.Add(uint64(len(out)))
		_, _ = n.conn.WriteBatch(out) // a failure is a loss: it is sent again
	}
}
