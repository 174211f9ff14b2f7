package dsm

import (
	"context"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/dsm/packet"
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
	core    *transport.Ledger // guarded by link.mu, as is waits
	waits   []ledgerWait
}

// ledgerWait is somebody who waits for a record to be settled.
type ledgerWait struct {
	record uint64
	done   chan struct{} // has room for one token
}

// OpenLedger begins to open the ledger of the client's node. It does not wait: records may
// be appended at once, and leave when the ledger is open. A client has one ledger; a second
// call is a BadRequest.
func (c *Client) OpenLedger(cfg LedgerConfig) (*Ledger, error) {
	const op = "open the ledger"
	k := c.link
	k.mu.Lock()
	switch {
	case k.ended != fault.OK:
		k.mu.Unlock()
		return nil, fault.New(k.ended, op, "the client is closed")
	case k.ledger != nil:
		k.mu.Unlock()
		return nil, fault.New(fault.BadRequest, op, "it is open")
	}
	l := &Ledger{link: k, machine: cfg.Machine, prefix: k.rack().DSMPrefix}
	l.core = transport.NewLedger(k.now(), transport.LedgerConfig{
		Name: k.address.As16(), Birth: cfg.Birth, Run: cfg.Run, Incarnation: k.incarnation, MaxData: k.maxData,
	})
	k.ledger = l
	k.flush()
	k.sit()
	return l, nil
}

// Append adds a record and returns its number; the first one of a run has number 1. It
// does not wait. The bytes must not change any more.
func (l *Ledger) Append(record []byte) uint64 {
	return l.add(func() uint64 { return l.core.Append(l.link.now(), record) })
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
	l.link.sit()
	return n
}

// Wait waits until a record, and with it all before it, is settled. It returns why that
// will never be: Stale if another run has the ledger, NotFound if the machine does not have
// it, NoSpace if it is full, Internal if a copy has lost it; or the context's error, or
// Canceled if the client is closed.
func (l *Ledger) Wait(ctx context.Context, record uint64) error {
	k := l.link
	k.mu.Lock()
	over, err := l.over(record)
	if over {
		k.mu.Unlock()
		return err
	}
	w := ledgerWait{record: record, done: make(chan struct{}, 1)}
	l.waits = append(l.waits, w)
	k.mu.Unlock()
	k.await(ctx, w.done, nil)
	k.mu.Lock()
	l.waits = slices.DeleteFunc(l.waits, func(o ledgerWait) bool { return o.done == w.done })
	over, err = l.over(record)
	k.mu.Unlock()
	k.sit()
	if over {
		return err
	}
	return fault.FromContext("append to the ledger", ctx.Err())
}

// over reports whether it is decided that a record is settled, or never will be. The
// caller holds link.mu.
func (l *Ledger) over(record uint64) (bool, error) {
	switch {
	case l.core.Settled() >= record:
		return true, nil
	case l.core.Err() != nil:
		return true, l.core.Err()
	case l.link.ended != fault.OK:
		return true, fault.New(l.link.ended, "append to the ledger", "the client is closed")
	}
	return false, nil
}

// Settled returns the number of the last settled record, and why no more will be; nil
// while all is well.
func (l *Ledger) Settled() (uint64, error) {
	l.link.mu.Lock()
	defer l.link.mu.Unlock()
	return l.core.Settled(), l.core.Err()
}

// receiveLedger takes an answer about a ledger. The caller holds link.mu.
func (k *link) receiveLedger(from packet.Pointer, h *packet.Header, data []byte) {
	l := k.ledger
	if l == nil || from.Machine() != l.machine || !from.InPrefix(l.prefix) {
		return
	}
	if a, err := packet.ParseLedgerAnswer(from, h, data); err == nil {
		l.core.Receive(k.now(), &a)
	}
}

// tellLedger wakes those whose records are settled, or never will be, and reports whether
// there are any. The caller holds link.mu.
func (k *link) tellLedger() (told bool) {
	if k.ledger == nil {
		return false
	}
	l := k.ledger
	l.waits = slices.DeleteFunc(l.waits, func(w ledgerWait) bool {
		over, _ := l.over(w.record)
		if over {
			w.done <- struct{}{}
			told = true
		}
		return over
	})
	return told
}

// sendLedger adds what the ledger has to send.
func (k *link) sendLedger(out *outbox) {
	if k.ledger == nil || k.ended != fault.OK {
		return
	}
	l := k.ledger
	for _, q := range l.core.Send() {
		out.addLedger(netip.AddrPortFrom(packet.LedgerAddress(l.prefix, l.machine, q.Op).Addr(), rackaddr.PortDSM), &q)
	}
}

// addLedger takes a request about a ledger.
func (o *outbox) addLedger(to netip.AddrPort, q *packet.LedgerRequest) {
	i := len(o.ms)
	if i == len(o.bufs) {
		o.bufs = append(o.bufs, nil)
	}
	o.bufs[i] = q.Append(o.bufs[i][:0])
	o.ms = append(o.ms, netio.Message{Buf: o.bufs[i], Remote: to})
}
