package rpc

import (
	"context"

	"github.com/bifrost-rack/bifrost/dsm"
)

// Memory returns the node's client of the distributed memory, for a program that
// is no handler: its operations are on behalf of the node alone.
func (n *Node) Memory() *dsm.Client { return n.memory }

// Memory returns the client of the distributed memory for a handler: its
// operations are on behalf of the execution that ctx belongs to, so that they
// can be undone and repeated with it. It panics if ctx is not a handler's, as
// an operation in a server that belongs to no call is a mistake in the program.
func Memory(ctx context.Context) *dsm.Client {
	e := executionOf(ctx)
	if e == nil {
		panic("rpc.Memory: the context is not one that a handler was given, nor derived from one")
	}
	return e.memory()
}

// memory makes the execution's client when it is first asked for, so that
// handlers which need none do not pay.
func (e *execution) memory() *dsm.Client {
	e.promote() // memory takes its time
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.client == nil {
		e.client = e.node.memory.With(dsm.Scope{Execution: e.call.Call})
	}
	return e.client
}
