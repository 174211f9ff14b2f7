package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/examples/arrays/workload"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// patient is the Arrays service whose first addRef waits, so that one can look
// at the rack in the middle of a call.
type patient struct {
	service.Arrays
	once            sync.Once
	entered, resume chan struct{}
}

// AddRef waits in its first call, and does its work then.
func (p *patient) AddRef(ctx context.Context, a *bifrost.GlobalPointer, aLength int64, b *bifrost.GlobalPointer, bLength int64) (*bifrost.GlobalPointer, error) {
	p.once.Do(func() {
		close(p.entered)
		select {
		case <-p.resume:
		case <-ctx.Done():
		}
	})
	return p.Arrays.AddRef(ctx, a, aLength, b, bLength)
}

// lend is the way of one call by reference, looked at from all sides.
func (s *stage) lend(ctx context.Context) error {
	s.tell.act("A call by reference: add two arrays of %d KiB that never pass through the callee's packet", s.cfg.Size>>10)
	a, b := make([]byte, s.cfg.Size), make([]byte, s.cfg.Size)
	for i := range a {
		a[i], b[i] = byte(i), byte(3*i>>4)
	}
	memory := s.caller.Memory()
	pa, err := s.put(ctx, "a", a)
	if err != nil {
		return err
	}
	pb, err := s.put(ctx, "b", b)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	var result *bifrost.GlobalPointer
	go func() {
		client := arrays.NewArraysClient(s.caller.Client("Arrays"))
		var err error
		result, err = client.AddRef(ctx, rpc.GlobalPointer(pa), int64(len(a)), rpc.GlobalPointer(pb), int64(len(b)))
		done <- err
	}()
	select {
	case <-s.entered:
	case err := <-done:
		return fmt.Errorf("the call ended before its handler began: %w", err)
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := s.holds(ctx, pa); err != nil {
		return err
	}
	if err := s.duringTheLease(ctx, pa, a); err != nil {
		return err
	}
	close(s.resume)
	if err := <-done; err != nil {
		return err
	}
	pr, err := rpc.PointerOf(result)
	if err != nil {
		return err
	}
	s.tell.regions[pr] = "the sum"
	if err := s.holds(ctx, pa, pr); err != nil {
		return err
	}
	if err := s.check(ctx, pr, a, b); err != nil {
		return err
	}
	if _, err := memory.Write(ctx, pa, a[:64]); err != nil {
		return fmt.Errorf("control did not return: %w", err)
	}
	s.tell.say("control of the arguments is back: the caller's write to a is let through again")
	return errors.Join(memory.Free(ctx, pb), memory.Free(ctx, pr), s.stay(ctx, pa))
}

// put puts an array into memory of the caller's own.
func (s *stage) put(ctx context.Context, name string, data []byte) (dsm.Pointer, error) {
	memory := s.caller.Memory()
	p, err := memory.Alloc(ctx, uint64(len(data)))
	if err != nil {
		return p, err
	}
	if _, err := memory.Write(ctx, p, data); err != nil {
		return p, err
	}
	s.tell.regions[p] = name
	s.tell.say("c1 allocates %s at %s on m%d and writes it", name, p, p.Machine())
	return p, nil
}

// holds tells what the switch has in its registers of regions.
func (s *stage) holds(ctx context.Context, regions ...dsm.Pointer) error {
	for _, p := range regions {
		h, err := s.rack.Gatekeeper().Holders(ctx, p)
		if err != nil {
			return err
		}
		s.tell.holds(&h.Region, s.tell.regions[p])
	}
	return nil
}

// duringTheLease tries what nobody may while the callee may read.
func (s *stage) duringTheLease(ctx context.Context, p dsm.Pointer, data []byte) error {
	memory := s.caller.Memory()
	if _, err := memory.Write(ctx, p, data[:64]); rpc.CodeOf(err) != rpc.PermissionDenied {
		return fmt.Errorf("the caller's write during the lease: %w", err)
	}
	s.tell.say("the caller tries to write to a during the lease: its own runtime refuses that")
	took, err := s.mustDeny(func() error { _, err := s.callee.Memory().Write(ctx, p, data[:64]); return err })
	if err != nil {
		return fmt.Errorf("the callee's write during the lease: %w", err)
	}
	s.tell.say("the callee tries to write to it: the switch answers permission denied after %v", took)
	if _, err := memory.Read(ctx, p, make([]byte, 64)); err != nil {
		return fmt.Errorf("the caller's read during the lease: %w", err)
	}
	s.tell.say("the caller may still read")
	return nil
}

// check compares the callee's result with the sum computed here.
func (s *stage) check(ctx context.Context, p dsm.Pointer, a, b []byte) error {
	want, got := make([]byte, len(a)), make([]byte, len(a))
	for i := range want {
		want[i] = a[i] + b[i]
	}
	if _, err := s.caller.Memory().Read(ctx, p, got); err != nil {
		return fmt.Errorf("reading the result: %w", err)
	}
	if !bytes.Equal(got, want) {
		return errors.New("the callee's sum is wrong")
	}
	s.verified(len(got))
	s.tell.say("the reply names the result at %s; control of it has moved to the caller, every byte is right", p)
	return nil
}

// stay shows that a third node cannot see what was never lent to it, and frees it.
func (s *stage) stay(ctx context.Context, p dsm.Pointer) error {
	s.tell.act("A stranger")
	took, err := s.mustDeny(func() error { _, err := s.stranger.Memory().Read(ctx, p, make([]byte, 1)); return err })
	if err != nil {
		return fmt.Errorf("the stranger's read: %w", err)
	}
	s.tell.say("s1 knows the pointer %s, but nobody lent it: permission denied after %v", p, took)
	return s.caller.Memory().Free(ctx, p)
}

// protect shows that freed memory is nobody's.
func (s *stage) protect(ctx context.Context) error {
	memory := s.caller.Memory()
	p, err := memory.Alloc(ctx, 4096)
	if err != nil {
		return err
	}
	if err := memory.Free(ctx, p); err != nil {
		return err
	}
	if _, err := memory.Read(ctx, p, make([]byte, 1)); rpc.CodeOf(err) != rpc.NotFound {
		return fmt.Errorf("reading freed memory: %w", err)
	}
	s.tell.say("c1 frees a region and tries to read it: it is not found")
	return nil
}

// sizes are those of the thesis's figures, as far as a demo takes them.
var sizes = []int{1, 64, 4096, 65536, 1 << 20}

// many runs the example's workloads, by value and by reference.
func (s *stage) many(ctx context.Context) error {
	s.tell.act("The thesis's workloads, by value and by reference, every result checked")
	client := workload.New(s.caller)
	for _, name := range workload.Names {
		for _, byReference := range []bool{false, true} {
			for _, size := range sizes {
				if !byReference && size > 16<<10 || name == "ping" && (byReference || size > 1) {
					continue // two arrays by value must fit one datagram; ping has no arrays
				}
				if err := client.Run(ctx, name, size, 1, byReference); err != nil {
					return err
				}
				s.verified(size)
			}
		}
		s.tell.say("%s: right", name)
	}
	return nil
}

func (s *stage) verified(size int) {
	s.report.Calls++
	s.report.Bytes += int64(size)
}

// mustDeny makes an access that has to be denied, and tells how long that took.
func (s *stage) mustDeny(access func() error) (time.Duration, error) {
	start := time.Now()
	err := access()
	took := time.Since(start).Round(time.Microsecond)
	if err == nil {
		return took, errors.New("it was let through")
	}
	if rpc.CodeOf(err) != rpc.PermissionDenied {
		return took, err
	}
	s.denials++
	return took, nil
}
