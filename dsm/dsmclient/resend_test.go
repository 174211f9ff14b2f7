package dsmclient_test

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/memrack"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// slowStack is a stack whose goroutines lose their CPU at the worst moments, as on a machine that is
// overloaded: one that sends a request for the second time, before it does; and one that reads the
// answer to the first, until the other one is there.
type slowStack struct {
	netio.Stack
	armed           atomic.Bool
	again, released chan struct{}
	sent            atomic.Int32 // since it was armed
}

func (s *slowStack) ListenUDP(local netip.AddrPort) (netio.Conn, error) {
	conn, err := s.Stack.ListenUDP(local)
	return &slowConn{conn, s}, err
}

type slowConn struct {
	netio.Conn
	s *slowStack
}

func (c *slowConn) WriteBatch(ms []netio.Message) (int, error) {
	if c.s.armed.Load() && c.s.sent.Add(1) == 2 {
		close(c.s.again)
		<-c.s.released
	}
	return c.Conn.WriteBatch(ms)
}

func (c *slowConn) ReadBatch(ms []netio.Message) (int, error) {
	n, err := c.Conn.ReadBatch(ms)
	if c.s.armed.Load() && err == nil {
		<-c.s.again
	}
	return n, err
}

// TestCopiesAreSent: when an operation is over, no copy of its request is about to be sent any more.
// The region may be lent then, and the switch would take a late copy for an access that nobody has
// granted.
func TestCopiesAreSent(t *testing.T) {
	for _, size := range []int{64, 60_000} {
		for name, f := range map[string]func(ctx context.Context, c *dsmclient.Client, p dsmclient.Pointer, b []byte) error{
			"write": func(ctx context.Context, c *dsmclient.Client, p dsmclient.Pointer, b []byte) error {
				_, err := c.Write(ctx, p, b)
				return err
			},
			"read": func(ctx context.Context, c *dsmclient.Client, p dsmclient.Pointer, b []byte) error {
				_, err := c.Read(ctx, p, b)
				return err
			},
			"free": func(ctx context.Context, c *dsmclient.Client, p dsmclient.Pointer, _ []byte) error {
				return c.Free(ctx, p)
			},
		} {
			t.Run(name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					r := newImpairedRack(t, memrack.Virtual(1, rackaddr.DefaultMTU), 1, wire.Impairment{})
					defer r.Close()
					h := r.Host("slow")
					must(t, h.AddAddress(rackaddr.Node(7)))
					s := &slowStack{Stack: h, again: make(chan struct{}), released: make(chan struct{})}
					view := r.View()
					c, err := dsmclient.NewClient(dsmclient.Config{Stack: s, Address: rackaddr.Node(7), Incarnation: 1, Rack: func() control.Rack { return view }, Batches: memrack.Batches(rackaddr.Node(7), func(uint8) *memory.Server { return r.Memories[0] })})
					must(t, err)
					p, err := c.Alloc(t.Context(), uint64(size))
					must(t, err)
					s.armed.Store(true)
					over := make(chan error, 1)
					go func() { over <- f(t.Context(), c, p, make([]byte, size)) }()
					<-s.again
					synctest.Wait() // the answer has been read, and there is nothing else to do
					if len(over) > 0 {
						t.Error("it is over, and a copy of its request is not sent yet")
					}
					s.armed.Store(false)
					close(s.released)
					must(t, <-over)
					must(t, c.Close())
				})
			})
		}
	}
}
