package dsmclient

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// link is the shell around a transport.Endpoint: it owns the socket, the clock
// and the timer.
type link struct {
	conn       netio.Conn
	rack       func() control.Rack
	start      time.Time
	operations operations
	frees      sync.Pool // of *leaving
	account    account
	leader     *leader
	over       chan struct{} // closed when the link has ended
	// Of the node, and of what one datagram carries.
	address     netip.Addr
	incarnation uint32
	maxData     int
	timing      transport.Limits
	cache       *regionCache // nil if freed regions are not kept
	slots       *regionSlots

	mu       sync.Mutex
	endpoint *transport.Endpoint
	ledgers  []*Ledger  // those that are open
	verdicts []*verdict // those that are not obeyed yet
	ended    fault.Code // why the link has ended; OK until then
	timer    *time.Timer
	alarm    time.Duration // when timer fires; transport.Never when it does not
	rand     *rand.Rand
}

// bufferShare is how much larger than a large window a receive buffer has to be: others
// send, too.
const bufferShare = 4

func newLink(cfg Config) (*link, error) {
	if err := cfg.Limits.Check(); err != nil {
		return nil, err
	}
	maxData := cfg.Stack.MTU() - netio.Overhead - dsmpacket.HeaderSize
	if r := cfg.Rack(); r.MTU > 0 {
		maxData = min(maxData, r.MTU-netio.Overhead-dsmpacket.HeaderSize)
	}
	maxData &^= 63 // whole cache lines
	if maxData <= 0 {
		return nil, fault.New(fault.BadRequest, "memory client", "an MTU of %d bytes leaves no room for data in a packet", cfg.Stack.MTU())
	}
	conn, err := cfg.Stack.ListenUDP(netip.AddrPortFrom(cfg.Address, rackaddr.PortDSM))
	if err != nil {
		return nil, fmt.Errorf("memory client of %s: %w", cfg.Address, err)
	}
	if b, ok := conn.(netio.Buffered); ok && cfg.Limits.Window == 0 && b.ReceiveBuffer() >= bufferShare*transport.LargeWindow {
		cfg.Limits.Window = transport.LargeWindow
	}
	addr := cfg.Address.As16()
	l := &link{
		conn: conn, rack: cfg.Rack, start: time.Now(), leader: newLeader(min(cfg.Stack.MTU()-netio.Overhead, netio.MaxDatagram)), over: make(chan struct{}), alarm: transport.Never,
		endpoint: transport.New(transport.Config{Incarnation: cfg.Incarnation, MaxData: maxData, Window: cfg.Limits.Window, Limits: cfg.Limits.timing()}),
		address:  cfg.Address, incarnation: cfg.Incarnation, maxData: maxData, timing: cfg.Limits.timing(),
		rand: rand.New(rand.NewPCG(binary.BigEndian.Uint64(addr[8:]), uint64(cfg.Incarnation))),
	}
	l.timer = time.AfterFunc(time.Hour, l.tick)
	l.timer.Stop()
	l.slots = newRegionSlots(l, cfg.Batches)
	if cfg.Keep {
		l.cache = newRegionCache(l)
	}
	return l, nil
}

func (l *link) now() time.Duration { return time.Since(l.start) }

// candidates returns the machines to try an allocation on, in order.
func (l *link) candidates(blades []control.MemoryBlade) []uint8 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return candidates(l.rand, blades)
}

// check refuses what need not be sent.
func (l *link) check(ctx context.Context, op dsmpacket.Op, p Pointer) error {
	if err := ctx.Err(); err != nil {
		return fault.FromContext(op.String(), err)
	}
	if prefix := l.rack().DSMPrefix; !p.Stored() || p.Prefix() != prefix {
		return fault.New(fault.BadRequest, op.String(), "%s is not a global pointer of this rack (prefix %#x)", p, prefix)
	}
	return nil
}

// run carries an operation out; its outcome stands in it afterwards.
func (l *link) run(ctx context.Context, o *operation) {
	l.mu.Lock()
	if l.ended != fault.OK {
		o.Status, o.Local = l.ended, true
		l.mu.Unlock()
		return
	}
	l.endpoint.Start(l.now(), &o.Transfer)
	l.flush()
	if !l.await(ctx, o.done, &o.Transfer) {
		l.cancel(ctx, o)
	}
	o.sending.Wait()
}

// background begins transfers. Nobody waits for them, or later. It is false if the
// link has ended.
func (l *link) background(transfers ...*transport.Transfer) bool {
	l.mu.Lock()
	if l.ended != fault.OK {
		l.mu.Unlock()
		return false
	}
	now := l.now()
	for _, t := range transfers {
		l.endpoint.Start(now, t)
	}
	l.flush()
	return true
}

// cancel gives an operation up, unless it has been done meanwhile.
func (l *link) cancel(ctx context.Context, o *operation) {
	l.mu.Lock()
	cancelled := l.endpoint.Cancel(l.now(), &o.Transfer, fault.FromContext("", ctx.Err()).Code)
	l.flush()
	if !cancelled {
		<-o.done
	}
	l.standIn()
}

// wait waits until the barrier that f sets, under the link's mutex, has passed;
// false if f sets none.
func (l *link) wait(ctx context.Context, f func(*transport.Endpoint) *transport.Barrier) (bool, error) {
	l.mu.Lock()
	if l.ended != fault.OK {
		l.mu.Unlock()
		return false, fault.New(l.ended, "settle", "the client is closed")
	}
	b := f(l.endpoint)
	if b == nil {
		l.mu.Unlock()
		return false, nil
	}
	passed := make(chan struct{}, 1)
	b.Tag = passed
	l.mu.Unlock()
	if l.await(ctx, passed, nil) {
		return true, nil
	}
	if err := ctx.Err(); err != nil {
		return false, fault.FromContext("settle", err)
	}
	return false, fault.New(fault.Canceled, "settle", "the client is closed")
}

// end fails everything that waits, and whatever comes later, with a status. It
// is false if the link has ended before.
func (l *link) end(status fault.Code) bool {
	l.cache.close()
	l.mu.Lock()
	if l.ended != fault.OK {
		l.mu.Unlock()
		return false
	}
	l.ended = status
	l.timer.Stop()
	l.endpoint.Close(status)
	l.tellLedgers()
	l.tellVerdicts()
	l.flush()
	close(l.over)
	return true
}

// close ends the link and waits for its goroutines.
func (l *link) close() error {
	first := l.end(fault.Canceled)
	l.slots.close()
	err := l.conn.Close()
	l.leader.leading.Wait()
	<-l.leader.vacant // whoever led has been told
	l.leader.watch.Clear()
	l.leave()
	if !first {
		return nil
	}
	return err
}

// outbox is datagrams made ready under the link's mutex, to be sent without it.
type outbox struct {
	ms   []netio.Message
	bufs [][]byte     // to use again, one for each message sent so far at most
	refs []*operation // that are not over before the messages are sent
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

// add takes a packet. Small data is copied, and so is what is sent again. The operation of the others,
// and of what is sent again, waits until it is sent.
func (o *outbox) add(p *transport.Packet) {
	i := len(o.ms)
	if i == len(o.bufs) {
		o.bufs = append(o.bufs, nil)
	}
	m := netio.Message{Remote: netip.AddrPortFrom(p.To.Addr(), rackaddr.PortDSM)}
	o.bufs[i] = p.Header.Append(o.bufs[i][:0])
	op := operationOf(p.Of)
	refer := op != nil && !p.Again && len(p.Data) >= referFrom
	if refer {
		m.More[0] = p.Data
	} else {
		o.bufs[i] = append(o.bufs[i], p.Data...)
	}
	if refer || op != nil && p.Again {
		op.sending.Add(1)
		o.refs = append(o.refs, op)
	}
	m.Buf = o.bufs[i]
	o.ms = append(o.ms, m)
}

// operationOf is the operation whose transfer it is, nil if nobody waits for it.
func operationOf(t *transport.Transfer) *operation {
	if t == nil {
		return nil
	}
	switch o := t.Tag.(type) {
	case *operation:
		return o
	case *leaving:
		return &o.operation
	}
	return nil
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
