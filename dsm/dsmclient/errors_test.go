package dsmclient_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/memrack"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// want checks an error's code and where it arose.
func want(t *testing.T, err error, code fault.Code, remote bool) {
	t.Helper()
	var e *dsmclient.Error
	if !errors.As(err, &e) || e.Code != code || e.Remote != remote {
		t.Errorf("got %v, want %v, remote %v", err, code, remote)
	}
}

func alloc(t *testing.T, c *dsmclient.Client, size uint64) dsmclient.Pointer {
	t.Helper()
	p, err := c.Alloc(t.Context(), size)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestNewClient_Incomplete(t *testing.T) {
	r := newRack(t, wire.Config{}, 1)
	c, err := dsmclient.NewClient(dsmclient.Config{Stack: r.Host("other"), Address: rackaddr.Node(1), Incarnation: 1, Rack: func() control.Rack { return control.Rack{} }})
	want(t, err, fault.BadRequest, false)
	if err == nil {
		_ = c.Close()
	}
}

func TestBadPointersAndSizes(t *testing.T) {
	r := newRack(t, wire.Config{}, 1)
	c, ctx, b := r.Client(1, 1), t.Context(), make([]byte, 8)
	p := alloc(t, c, 64)
	for _, bad := range []dsmclient.Pointer{
		{}, dsmpacket.Make(prefix+1, 1, dsmpacket.IDOf(0, 1)), p.With(dsmpacket.OpWrite), dsmpacket.FromAddr(rackaddr.Node(1)),
	} {
		_, err := c.Read(ctx, bad, b)
		want(t, err, fault.BadRequest, false)
		want(t, c.Free(ctx, bad), fault.BadRequest, false)
	}
	_, err := c.Read(ctx, p.Add(64), b)
	want(t, err, fault.BadRequest, true)
	_, err = c.Write(ctx, p.Add(-1), b)
	want(t, err, fault.BadRequest, false)
	_, err = c.Read(ctx, dsmpacket.Make(prefix, 1, p.ID()+1), b)
	want(t, err, fault.NotFound, true)
	_, err = c.Write(ctx, p.Add(60), b)
	want(t, err, fault.BadRequest, true)
	want(t, c.Free(ctx, p.Add(8)), fault.BadRequest, true)
	for _, size := range []uint64{0, 1<<dsmpacket.MaxClass + 1} {
		_, err = c.Alloc(ctx, size)
		want(t, err, fault.BadRequest, false)
	}
	if n, err := c.Read(ctx, p.Add(64), nil); n != 0 || err != nil {
		t.Errorf("empty read: %d, %v", n, err)
	}
}

// A transfer that fails midway tells how far it came.
func TestPartialTransfers(t *testing.T) {
	r := newRack(t, wire.Config{MTU: 1500}, 1)
	c, ctx := r.Client(1, 1), t.Context()
	const size, chunk = 1 << 20, (1500 - 48 - 64) &^ 63
	p := alloc(t, c, size)
	data := fill(size+1, 1)
	n, err := c.Write(ctx, p, data)
	want(t, err, fault.BadRequest, true)
	if n != size/chunk*chunk { // the last datagram, which crosses the end, is refused whole
		t.Errorf("wrote %d bytes", n)
	}
	got := make([]byte, n)
	if k, err := c.Read(ctx, p, got); k != n || err != nil || !bytes.Equal(got, data[:n]) {
		t.Errorf("read %d of %d bytes back: %v", k, n, err)
	}
	// The switch may stop a transfer anywhere.
	limit := p.Offset() + 500*chunk
	r.Deny(func(_, to dsmpacket.Pointer) bool { return to.Op() == dsmpacket.OpRead && to.Offset() >= limit })
	n, err = c.Read(ctx, p, make([]byte, size))
	want(t, err, fault.PermissionDenied, true)
	if n != 500*chunk {
		t.Errorf("read %d bytes, permitted %d", n, 500*chunk)
	}
}

func TestAllocGoesWhereThereIsRoom(t *testing.T) {
	r := newRack(t, wire.Config{}, 0)
	r.Capacity = 1 << 20
	small := r.AddMemory()
	r.Capacity = 64 << 30
	large := r.AddMemory()
	c, ctx := r.Client(1, 1), t.Context()
	start := time.Now()
	var first dsmclient.Pointer
	for range 60 { // 60 GiB, which this machine does not have
		p := alloc(t, c, 1<<30)
		if p.Machine() != 2 {
			t.Fatalf("1 GiB at %s", p)
		}
		first = p
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("60 allocations of 1 GiB took %v", d)
	}
	b := []byte{1, 2, 3}
	if _, err := c.Write(ctx, first.Add(1<<30-3), b); err != nil {
		t.Error(err)
	}
	if _, err := c.Read(ctx, first.Add(1<<29), b); err != nil || !bytes.Equal(b, []byte{0, 0, 0}) {
		t.Errorf("untouched memory: %v, %v", b, err)
	}
	for range 4 {
		alloc(t, c, 1<<30)
	}
	_, err := c.Alloc(ctx, 1<<30)
	want(t, err, fault.NoSpace, true)
	if large.Used() != 64<<30 || small.Used() != 0 {
		t.Errorf("used %d and %d bytes", small.Used(), large.Used())
	}
	if p := alloc(t, c, 4096); p.Machine() != 1 {
		t.Errorf("4 KiB at %s", p)
	}
}

func TestNoMemoryBlade(t *testing.T) {
	c := newRack(t, wire.Config{}, 0).Client(1, 1)
	_, err := c.Alloc(t.Context(), 64)
	want(t, err, fault.NoSpace, false)
}

func TestIncarnationsAndFences(t *testing.T) {
	r := newRack(t, wire.Config{}, 1)
	first := r.Client(1, 4)
	p, b := alloc(t, first, 64), make([]byte, 8)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, ctx := r.Client(1, 5), t.Context()
	if _, err := second.Write(ctx, p, b); err != nil {
		t.Fatal(err)
	}
	must(t, second.Close())
	old := r.Client(1, 4)
	_, err := old.Write(ctx, p, b)
	want(t, err, fault.Stale, true)
	must(t, old.Close())

	_, err = r.Memories[0].Fence(control.Fence{Node: rackaddr.Node(1), Incarnation: 5})
	must(t, err)
	fenced := r.Client(1, 5)
	_, err = fenced.Read(ctx, p, b)
	want(t, err, fault.Stale, true)
	_, err = fenced.Alloc(ctx, 64)
	want(t, err, fault.Stale, true)
	want(t, fenced.Free(ctx, p), fault.Stale, true)
	must(t, fenced.Close())
	if _, err := r.Client(1, 6).Read(ctx, p, b); err != nil {
		t.Error(err)
	}
}

// Nobody answers: the caller decides how long to wait.
func TestDeadlinesAndCancellation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRack(t, memrack.Virtual(1, 0), 1)
		c := r.Client(1, 1)
		p, b := alloc(t, c, 64), make([]byte, 8)
		lost := dsmpacket.Make(prefix, 9, dsmpacket.IDOf(0, 1)) // nobody is there
		_, err := c.Read(t.Context(), lost, b)
		want(t, err, fault.Unavailable, false)

		ctx, cancel := context.WithTimeout(t.Context(), 70*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err = c.Write(ctx, lost, b)
		want(t, err, fault.Deadline, false)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 70*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		_, err = c.Read(ctx, p, b) // the context has ended: nothing is sent
		want(t, err, fault.Deadline, false)

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err = c.Read(ctx, lost, b)
		want(t, err, fault.Canceled, false)

		// The write may still happen; the client goes on asking.
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		want(t, c.Settle(ctx, lost), fault.Deadline, false)
		if err := c.Settle(t.Context(), p); err != nil {
			t.Error(err)
		}
		_, err = c.Read(t.Context(), lost, b)
		want(t, err, fault.Unavailable, false)
		if n, err := c.Write(t.Context(), p, b); n != 8 || err != nil {
			t.Errorf("another machine: %d, %v", n, err)
		}
	})
}
