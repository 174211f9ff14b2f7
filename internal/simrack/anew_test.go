package simrack_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestRackBeginsAnew starts a Gatekeeper after one whose log is lost: blades are the
// same, nodes get the numbers that others had, and memory is empty and works.
func TestRackBeginsAnew(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		disk := new(wal.Disk)
		rack, err := simrack.Start(ctx, simrack.Config{Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: disk})
		must(err)
		used := func() (n uint64) {
			for _, m := range []string{"m1", "m2", "m3"} {
				n += rack.MemoryServer(m).Used()
			}
			return n
		}
		var old *dsm.Pointer
		var first uint64
		for lives := range 3 {
			node, err := rack.Join(ctx, "c1", "client")
			must(err)
			memory := node.Memory()
			for range 10 { // each with a request of its own, as the one before had
				p, err := memory.Alloc(ctx, 64)
				must(err)
				_, err = memory.Write(ctx, p, []byte("hello"))
				must(err)
				if old == nil {
					old = &p
				}
			}
			if lives == 0 {
				first = used()
			}
			if n := used(); n != first || n < 10*64 {
				t.Errorf("life %d: %d bytes are in use, %d in the first one", lives, n, first)
			}
			if lives > 0 {
				if _, err := memory.Read(ctx, *old, make([]byte, 5)); rpc.CodeOf(err) != rpc.PermissionDenied {
					t.Errorf("life %d: a pointer of the first one: %v", lives, err)
				}
			}
			rack.CrashGatekeeper()
			*disk = wal.Disk{}
			must(rack.RestartGatekeeper(ctx))
			<-time.After(10 * time.Second) // virtual: all blades have said hello again
			if n := used(); n != 0 {
				t.Errorf("life %d: %d bytes are left", lives, n)
			}
			_ = node.Close(ctx)
		}
		must(rack.Close())
	})
}
