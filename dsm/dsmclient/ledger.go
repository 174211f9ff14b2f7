package dsmclient

import (
	"context"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// LedgerConfig says which ledger a client writes. Package rpc uses ledgers; applications
// have no need of them.
type LedgerConfig struct {
	// Machine is the memory machine that keeps the ledger, Birth its birth number when the
	// ledger was granted there.
	Machine uint8
	Birth   uint64
	// Name is the ledger's within the machine; zero stands for the node's own.
	Name [16]byte
	// Run is the run that opens it: of a node's own ledger the node's incarnation.
	Run uint32
}

// Ledger is a node's write-ahead log in the memory of the rack. A record that is settled
// is held by every copy of the machine, and survives the node. Its methods may be called
// concurrently.
type Ledger struct {
	link    *link
	machine uint8
	prefix  uint8
	name    [16]byte
	core    *transport.Ledger // guarded by link.mu, as is what follows
	closed  bool
	waits   []ledgerWait
}

// ledgerWait is somebody who waits until something is decided.
type ledgerWait struct {
	over func() bool
	done chan struct{} // has room for one token
}

// OpenLedger begins to open a ledger. It does not wait: records may be appended at once, and
// leave when the ledger is open, which it is when the former run has been sealed at every
// copy and the copies have been made equal. A ledger that is open already is a BadRequest.
func (c *Client) OpenLedger(cfg LedgerConfig) (*Ledger, error) {
	const op = "open the ledger"
	k := c.link
	if cfg.Name == ([16]byte{}) {
		cfg.Name = k.address.As16()
	}
	k.mu.Lock()
	switch {
	case k.ended != fault.OK:
		k.mu.Unlock()
		return nil, fault.New(k.ended, op, "the client is closed")
	case k.ledgerOf(cfg.Name) != nil:
		k.mu.Unlock()
		return nil, fault.New(fault.BadRequest, op, "the client has this ledger open already")
	}
	l := &Ledger{link: k, machine: cfg.Machine, prefix: k.rack().DSMPrefix, name: cfg.Name}
	l.core = transport.NewLedger(k.now(), transport.LedgerConfig{
		Name: cfg.Name, Birth: cfg.Birth, Run: cfg.Run, Incarnation: k.incarnation, MaxData: k.maxData, Limits: k.timing,
	})
	k.ledgers = append(k.ledgers, l)
	k.flush()
	k.standIn()
	return l, nil
}

// Append adds records, and returns the number of the last one; the first record of a run has
// number 1. Those of one call leave together. It does not wait. The bytes must not change any more.
func (l *Ledger) Append(records ...[]byte) uint64 {
	return l.add(func() uint64 { return l.core.Append(l.link.now(), records...) })
}

// Base adds a record that stands for all before it. Once it is settled, those need not be
// kept.
func (l *Ledger) Base(record []byte) uint64 {
	return l.add(func() uint64 { return l.core.Base(l.link.now(), record) })
}

func (l *Ledger) add(add func() uint64) uint64 {
	l.link.mu.Lock()
	n := add()
	l.link.flush()
	l.link.standIn()
	return n
}

// Wait waits until a record, and with it all before it, is settled; record 0 stands for the
// opening of the ledger. It returns why that
// will never be: Stale if another run has the ledger, NotFound if the machine does not have
// it, Internal if a copy has lost it; or the context's error, or
// Canceled if the client is closed. While the ledger has no room for the record, Wait waits.
func (l *Ledger) Wait(ctx context.Context, record uint64) error {
	l.link.mu.Lock()
	l.until(ctx, func() bool { over, _ := l.over(record); return over })
	over, err := l.over(record)
	l.link.mu.Unlock()
	l.link.standIn()
	if over {
		return err
	}
	return fault.FromContext("append to the ledger", ctx.Err())
}

// until waits until something is decided, or ctx or the client has ended. The caller holds
// link.mu, and has it again afterwards.
func (l *Ledger) until(ctx context.Context, over func() bool) {
	if over() {
		return
	}
	k := l.link
	w := ledgerWait{over: over, done: make(chan struct{}, 1)}
	l.waits = append(l.waits, w)
	k.flush()
	k.await(ctx, w.done, nil)
	k.mu.Lock()
	l.waits = slices.DeleteFunc(l.waits, func(o ledgerWait) bool { return o.done == w.done })
}

// Read calls yield for each record that former runs have left, in order. It waits until the
// ledger is open. The records are yield's to keep. An error of yield ends Read, and is
// returned. Otherwise the error is one that Wait returns; NotFound also if what is to be read
// is not kept any more, since this run has settled a base; or Internal if a chunk is damaged.
// One Read of a ledger may run at a time.
func (l *Ledger) Read(ctx context.Context, yield func(record []byte) error) error {
	const op = "read the ledger"
	k := l.link
	k.mu.Lock()
	l.core.Read(k.now())
	defer func() {
		k.mu.Lock()
		l.core.StopReading()
		k.mu.Unlock()
		k.standIn()
	}()
	var records dsmpacket.Records
	for {
		l.until(ctx, func() bool { return l.core.Readable() || l.closed || k.ended != fault.OK })
		chunks, last, err := l.core.Take(k.now())
		if err == nil && len(chunks) == 0 && !last {
			err = l.why(ctx, op)
		}
		k.flush()
		if err != nil {
			return err
		}
		for _, c := range chunks {
			if bad := records.Chunk(c, func(b []byte) {
				if err == nil {
					err = yield(b)
				}
			}); bad != nil && err == nil {
				err = fault.New(fault.Internal, op, "%v", bad)
			}
			if err != nil {
				return err
			}
		}
		if last && !records.Whole() {
			return fault.New(fault.Internal, op, "the ledger ends in the middle of a record")
		}
		if last {
			return nil
		}
		k.mu.Lock()
	}
}

// why is why a wait has ended without what it waited for. The caller holds link.mu.
func (l *Ledger) why(ctx context.Context, op string) error {
	switch {
	case l.closed:
		return fault.New(fault.Canceled, op, "the ledger is closed")
	case l.link.ended != fault.OK:
		return fault.New(l.link.ended, op, "the client is closed")
	}
	return fault.FromContext(op, ctx.Err())
}

// over reports whether it is decided that a record is settled, or never will be. The
// caller holds link.mu.
func (l *Ledger) over(record uint64) (bool, error) {
	switch {
	case l.core.Open() && l.core.Settled() >= record:
		return true, nil
	case l.core.Err() != nil:
		return true, l.core.Err()
	case l.closed:
		return true, fault.New(fault.Canceled, "append to the ledger", "the ledger is closed")
	case l.link.ended != fault.OK:
		return true, fault.New(l.link.ended, "append to the ledger", "the client is closed")
	}
	return false, nil
}

// Close ends the ledger here: what is not settled yet never will be known to be, and the
// ledger may be opened again. The machine keeps it.
func (l *Ledger) Close() {
	k := l.link
	k.mu.Lock()
	l.closed = true
	k.tellLedgers()
	k.ledgers = slices.DeleteFunc(k.ledgers, func(o *Ledger) bool { return o == l })
	k.flush()
	k.interrupt() // whoever reads may have been told just now
	k.standIn()
}

// Standing is how a ledger stands. Before it is open, all is 0.
type Standing struct {
	// Settled is the number of the last settled record.
	Settled uint64
	// Room is how many bytes may still be appended, as Cost counts them, but for an eighth of the space. Append itself does not
	// refuse what is beyond it: it waits.
	Room uint64
	// Space is how many bytes of records the ledger may take, as Cost counts them. While a base is not settled yet, there may be
	// as many before it.
	Space uint64
}

// Standing tells how the ledger stands.
func (l *Ledger) Standing() (s Standing) {
	l.link.mu.Lock()
	defer l.link.mu.Unlock()
	if l.core.Open() {
		s = Standing{Settled: l.core.Settled(), Room: l.core.Room(), Space: l.core.Space()}
	}
	return s
}

// Cost is how many bytes of a ledger a record of so many bytes takes at most.
func (l *Ledger) Cost(bytes int) int {
	return dsmpacket.RecordSize(bytes) + (1+bytes/l.link.maxData)*dsmpacket.ChunkCost
}

// Settled returns the number of the last settled record, and why no more will be; nil
// while all is well.
func (l *Ledger) Settled() (uint64, error) {
	l.link.mu.Lock()
	defer l.link.mu.Unlock()
	return l.core.Settled(), l.core.Err()
}

// ledgerOf returns the open ledger of a name, nil if there is none. The caller holds l.mu.
func (l *link) ledgerOf(name [16]byte) *Ledger {
	for _, o := range l.ledgers {
		if o.name == name {
			return o
		}
	}
	return nil
}

// receiveLedger takes an answer about a ledger. The caller holds l.mu.
func (l *link) receiveLedger(from dsmpacket.Pointer, h *dsmpacket.Header, data []byte) {
	a, err := dsmpacket.ParseLedgerAnswer(from, h, data)
	if err != nil {
		return
	}
	if a.Op.Word() {
		l.receiveVerdict(from, &a)
		return
	}
	if o := l.ledgerOf(a.Ledger); o != nil && from.Machine() == o.machine && from.InPrefix(o.prefix) {
		o.core.Receive(l.now(), &a)
	}
}

// tellLedgers wakes those for whom something is decided, and reports whether there are any.
// The caller holds l.mu.
func (l *link) tellLedgers() (told bool) {
	for _, o := range l.ledgers {
		o.waits = slices.DeleteFunc(o.waits, func(w ledgerWait) bool {
			over := w.over()
			if over {
				w.done <- struct{}{}
				told = true
			}
			return over
		})
	}
	return told
}

// sendLedgers adds what the ledgers have to send.
func (l *link) sendLedgers(out *outbox) {
	if l.ended != fault.OK {
		return
	}
	for _, o := range l.ledgers {
		for _, q := range o.core.Send() {
			out.addLedger(netip.AddrPortFrom(dsmpacket.LedgerAddress(o.prefix, o.machine, q.Op).Addr(), rackaddr.PortDSM), &q)
		}
	}
}

// addLedger takes a request about a ledger.
func (o *outbox) addLedger(to netip.AddrPort, q *dsmpacket.LedgerRequest) {
	i := len(o.ms)
	if i == len(o.bufs) {
		o.bufs = append(o.bufs, nil)
	}
	o.bufs[i] = q.Append(o.bufs[i][:0])
	o.ms = append(o.ms, netio.Message{Buf: o.bufs[i], Remote: to})
}
