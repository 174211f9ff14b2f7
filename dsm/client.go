package dsm

import (
	"net/netip"

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
	// four full datagrams, which fit a default socket buffer, or more if the
	// client's own is large and no datagram is lost.
	Window int
	// Keep makes the client keep freed regions for a second, for allocations of
	// their size: they stay under the node's control, and neither their free nor the
	// next allocation waits for the Gatekeeper. Sizes that are allocated again and
	// again without coming back are allocated ahead. Whoever passes regions on must
	// then say so (Lend, Returned, HandOver, Gained).
	Keep bool
}

// Client is one node's access to the distributed memory. Its methods may be
// called concurrently.
type Client struct {
	link  *link
	scope *scope // nil: on behalf of no execution
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

// Close ends the client and all clients made from it With a scope. Operations
// under way fail with Canceled. What became of the node's unsettled requests
// is then for whoever ends the node.
func (c *Client) Close() error { return c.link.close() }
