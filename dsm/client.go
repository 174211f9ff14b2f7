package dsm

import (
	"net/netip"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
)

// Pointer is a global pointer: 16 bytes that name one byte of the distributed
// memory. The zero Pointer is nil.
type Pointer = packet.Pointer

// Error is what every operation fails with; its Code says why.
type Error = fault.Error

// Config is what a client needs of its node.
type Config struct {
	// Stack is the node's network; Address and Incarnation are the node's identity.
	Stack       netio.Stack
	Address     netip.Addr
	Incarnation uint32
	// Rack returns the newest view of the rack. It is called for every
	// operation and must not block.
	Rack func() control.Rack
	// Window is how many bytes may be under way with one memory blade; 0 means
	// four full datagrams, which fit a default socket buffer.
	Window int
}

// Client is one node's access to the distributed memory. Its methods may be
// called concurrently.
type Client struct {
	link  *link
	scope *scope // nil: on behalf of no execution
}

// Scope names the execution on whose behalf a client's operations are.
type Scope struct {
	Execution [16]byte
	Branch    uint64 // branch of the execution; 0 for its trunk
}

// scope counts the operations of one branch.
type scope struct {
	Scope
	next atomic.Uint32
}

// NewClient returns a node's client. It binds the node's address on the memory
// port, so a node has one client at a time.
func NewClient(cfg Config) (*Client, error) {
	l, err := newLink(cfg)
	if err != nil {
		return nil, err
	}
	return &Client{link: l}, nil
}

// With returns a client whose operations are on behalf of an execution. It
// shares everything else with c. Its operations are numbered from 0 in the order
// in which they begin, which a re-run must repeat; so one goroutine uses it.
func (c *Client) With(s Scope) *Client {
	return &Client{link: c.link, scope: &scope{Scope: s}}
}

// Close ends the client and all clients made from it With a scope. Operations
// under way fail with Canceled. What became of the node's unsettled requests
// is then for whoever ends the node.
func (c *Client) Close() error { return c.link.close() }

// nextScope returns the header fields of the next operation.
func (c *Client) nextScope() transport.Scope {
	if c.scope == nil {
		return transport.Scope{}
	}
	return transport.Scope{Execution: c.scope.Execution, Branch: c.scope.Branch, Index: c.scope.next.Add(1) - 1}
}
