package rpc

import (
	"context"

	"github.com/bifrost-rack/bifrost/dsm"
)

// Memory returns the node's client of the distributed memory, for a program that
// is no handler: its operations are on behalf of the node alone.
func (n *Node) Memory() *dsm.Client { return n.memory }

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
	return b.memory()
}

// memory makes the branch's client when it is first asked for, so that handlers
// which need none do not pay.
func (b *Branch) memory() *dsm.Client {
	e := b.e
	e.promote() // memory takes its time
	e.mu.Lock()
	defer e.mu.Unlock()
	if b.client == nil {
		b.client = e.node.memory.With(dsm.Scope{Execution: e.id, Branch: uint64(e.epoch)<<32 | uint64(b.number)})
	}
	return b.client
}
