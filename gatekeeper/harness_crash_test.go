package gatekeeper

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// inLogged is inSmall with a log that outlives the Gatekeeper.
func inLogged(t *testing.T, f func(s *small)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRack(t)
		r.settle = synctest.Wait
		r.disk = new(wal.Disk)
		r.start(Config{})
		f(newSmall(r))
	})
}

// crash ends the Gatekeeper at once: nothing more is logged, and nothing sent.
func (r *rack) crash() {
	r.t.Helper()
	r.disk.Crash()
	_ = r.stop() // whether the log failed before the context ended is chance
	r.stop = nil
	r.settle()
}

// restart crashes the Gatekeeper and starts one with the same log.
func (r *rack) restart() {
	r.t.Helper()
	r.crash()
	r.start(Config{})
	r.settle()
}

// fuse is a connection to the switch that crashes the Gatekeeper when a number of
// messages have gone through it: writes of rules, and packets. A second one lets
// the log crash some messages before, so that rules are written whose reason is
// not logged.
type fuse struct {
	grpc.ClientConnInterface
	r *rack

	mu     sync.Mutex
	lit    bool
	after  int // messages that still go through
	before int // the log crashes when so few are left
	blow   func()
	blown  bool
	used   bool // at least the log has crashed
}

// light readies the fuse for a Gatekeeper.
func (f *fuse) light(cancel func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blow, f.blown, f.lit = cancel, false, f.lit && !f.used
}

// pass lets a message through, or not.
func (f *fuse) pass() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lit && f.after == f.before {
		f.r.disk.Crash()
		f.used = true
	}
	if f.lit && f.after == 0 {
		f.lit, f.blown = false, true
		f.blow()
	}
	if f.blown {
		return status.Error(codes.Unavailable, "crashed")
	}
	f.after--
	return nil
}

func (f *fuse) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if strings.HasSuffix(method, "/Write") {
		if err := f.pass(); err != nil {
			return err
		}
	}
	return f.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func (f *fuse) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := f.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err == nil && desc.ClientStreams {
		s = &fusedStream{s, f}
	}
	return s, err
}

// fusedStream is the stream of packets.
type fusedStream struct {
	grpc.ClientStream
	f *fuse
}

func (s *fusedStream) SendMsg(m any) error {
	if err := s.f.pass(); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(m)
}
