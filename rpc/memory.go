package rpc

import (
	"context"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// Memory returns the node's client of the distributed memory, for a program that
// is no handler: its operations are on behalf of the node alone.
func (n *Node) Memory() *dsm.Client { return (*dsm.Client)(n.memory) }

// Memory returns the client of the distributed memory for a handler or one of its
// branches: its operations are on behalf of the execution that ctx belongs to, so
// that they can be undone and repeated with it. It panics if ctx is not a
// handler's, as an operation in a server that belongs to no call is a mistake in
// the program.
func Memory(ctx context.Context) *dsm.Client {
	b := branchOf(ctx)
	if b == nil {
		panic("rpc.Memory: the context is not one that a handler was given, nor derived from one")
	}
	return (*dsm.Client)(b.memory())
}

// memory makes the branch's client when it is first asked for, so that handlers
// which need none do not pay.
func (b *opSequence) memory() *dsmclient.Client {
	e := b.e
	e.promote() // memory takes its time
	if err := e.enlist(); err != nil {
		e.abandon() // the node has ended, and what the handler does now comes to nothing
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if b.client == nil {
		b.client = e.node.memory.With(b.scope())
	}
	return b.client
}

// scope is on whose behalf the branch's memory operations are. Those of an
// execution that is not exactly-once are final at once: nobody will commit it.
func (b *opSequence) scope() dsmclient.Scope {
	e := b.e
	if e.journal == nil {
		return dsmclient.Scope{}
	}
	return dsmclient.Scope{
		Execution: e.call.Call, Branch: uint64(e.main.lastCheckpoint())<<32 | uint64(b.number),
		Replay: e.main != nil || e.call.Attempt > 0,
	}
}

// pass makes regions ready to be passed on: lent to a call, or given away.
func (n *Node) pass(ctx context.Context, ptrs []dsm.Pointer, lent bool) error {
	switch {
	case len(ptrs) == 0:
		return nil
	case lent:
		return n.memory.Lend(ctx, ptrs...)
	}
	return n.memory.HandOver(ctx, ptrs...)
}

// finishTime bounds the wait for the fate of a branch's last memory operations. A
// blade that says nothing for so long has failed, and its regions with it.
const finishTime = 5 * time.Second

// finishMemory ends the branch's memory operations: after it none takes effect,
// so the execution can be committed.
func (b *opSequence) finishMemory() error {
	b.e.mu.Lock()
	client := b.client
	b.e.mu.Unlock()
	if client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(b.e.node.base, finishTime)
	defer cancel()
	return client.Finish(ctx)
}

// GlobalPointer is a pointer as Thrift structs carry it. The rack lends or hands
// over the region that it points to when a call, or its answer, carries it.
func GlobalPointer(p dsm.Pointer) *bifrost.GlobalPointer {
	if p.IsNil() {
		return &bifrost.GlobalPointer{Address: []byte{}}
	}
	return &bifrost.GlobalPointer{Address: p[:]}
}

// PointerOf returns the pointer that a Thrift struct carries; nil for one that is
// absent or empty. What is no global pointer is refused as [BadRequest].
func PointerOf(g *bifrost.GlobalPointer) (dsm.Pointer, error) {
	if g == nil || len(g.Address) == 0 {
		return dsm.Pointer{}, nil
	}
	p, err := dsmpacket.FromBytes(g.Address)
	if err != nil {
		return p, &Error{Code: BadRequest, Op: "pointer", Err: err}
	}
	return p, nil
}
