// Package dsm is an application's access to the distributed shared memory: memory on
// memory blades, named by global pointers and reached over the network.
//
//	memory := node.Memory()                        // in a handler: rpc.Memory(ctx)
//	p, err := memory.Alloc(ctx, 4096)              // a region of zeros
//	n, err := memory.Write(ctx, p.Add(10), data)   // anywhere within it
//	n, err = memory.Read(ctx, p.Add(10), data)
//	err = memory.Free(ctx, p)
//
// A program gets its [Client] from package rpc. The rack's switch checks every access: a
// node may use the regions that it has allocated, those that a call has lent it until that
// call returns, and those that a result or a one-way call has given it. Another node may let
// it read one for longer, by a standing lease. Package rpc says how regions are passed on.
//
// A [Pointer] is a byte's address, and arithmetic within its region is allowed. A region's
// size is the requested size rounded up to a power of two, at least 64 bytes.
//
// [Client.Read] and [Client.Write] of up to one datagram's data (about 64 KB in
// emulation) are atomic; larger ones are cut. A read returns what the last completed write left.
//
// In an exactly-once execution the memory blades can take back what the execution has
// changed until it is committed. A re-run gets the same pointers.
//
// Operations fail with an [*Error].
package dsm

import (
	"context"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Pointer is a global pointer: 16 bytes that name one byte of the distributed memory. The
// zero Pointer is nil.
type Pointer = dsmpacket.Pointer

// ParsePointer reads a global pointer as [dsmpacket.Pointer.String] prints it.
func ParsePointer(s string) (Pointer, error) { return dsmpacket.ParsePointer(s) }

// Error is what every operation fails with; its Code says why.
type Error = fault.Error

// Limits bound what a client has under way, and say when it tries again or gives up. A field
// that is 0 stands for its default. A node's are
// set by [github.com/bifrost-rack/bifrost/rpc.WithLimits].
type Limits struct {
	// Window is how many bytes may be under way to or from one memory blade; one packet may
	// in any case. Default: four full datagrams, which fit a default socket buffer, or more
	// if the client's own is large and no datagram is lost.
	Window int
	// FirstTimeout is after how long a request is sent again while no round trip has been
	// measured; LeastTimeout and MostTimeout bound that time afterwards. Defaults: 20 ms,
	// 10 ms, a second.
	FirstTimeout, LeastTimeout, MostTimeout time.Duration
	// GiveUp is how long a memory blade may leave a request unanswered until the operation
	// fails as Unavailable. Blades that fail are replaced long before. Default: 30 s.
	GiveUp time.Duration
}

// Client is a node's access to the distributed memory, in a handler on behalf of an
// execution. Its methods may be called concurrently, except that one branch of an
// exactly-once execution does one operation at a time: another one that begins meanwhile
// fails as Nondeterminism.
type Client dsmclient.Client

// inner is the client that package rpc made.
func (c *Client) inner() *dsmclient.Client { return (*dsmclient.Client)(c) }

// Alloc makes a region of at least size bytes, all zero, that this node controls, and
// returns the pointer to its first byte. It fails as NoSpace if no memory blade has room
// for it, or none for the node's owner: all nodes of a Unix user on a blade together may have six tenths of
// a blade's memory, and less if others have some. If ctx ends, a region that is allocated nevertheless is freed again.
//
// The re-run of an execution gets the pointers that it got before. It fails as
// Nondeterminism if it asks for another size than before.
func (c *Client) Alloc(ctx context.Context, size uint64) (Pointer, error) {
	return c.inner().Alloc(ctx, size)
}

// Free ends the region that p is the first byte of. The node must control it. While a call of
// this program has it on loan, Free fails as PermissionDenied; while another one has, it waits
// for that call's end. A Free whose context ends goes on without its caller.
func (c *Client) Free(ctx context.Context, p Pointer) error { return c.inner().Free(ctx, p) }

// Read fills b with the bytes from p on. It returns how many bytes, from the first on, have
// been read; less than len(b) only with an error.
func (c *Client) Read(ctx context.Context, p Pointer, b []byte) (int, error) {
	return c.inner().Read(ctx, p, b)
}

// Write puts b at p. It returns how many bytes, from the first on, certainly stand there;
// less than len(b) only with an error. While a call has the region on loan, Write fails or waits
// as [Client.Free] does. When ctx ends, what has been sent may still be written: [Client.Settle]
// waits until that is known, and so do this client's later operations on the same bytes.
func (c *Client) Write(ctx context.Context, p Pointer, b []byte) (int, error) {
	return c.inner().Write(ctx, p, b)
}

// Settle returns when it is known what became of each write and free of the pointers'
// regions that this node has begun, cancelled ones included: none can take effect any more.
// Without pointers, it waits for all that the branch of an execution has begun itself,
// allocations included. The runtime settles the requests on a region before a call passes it on.
func (c *Client) Settle(ctx context.Context, ptrs ...Pointer) error {
	return c.inner().Settle(ctx, ptrs...)
}
