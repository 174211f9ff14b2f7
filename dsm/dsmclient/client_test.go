package dsmclient_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

func fill(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

func TestTransfersOfEverySize(t *testing.T) {
	r := newRack(t, wire.Config{}, 1)
	transfers(t, r.Client(1, 1), sizes...)
	if used := r.Memories[0].Used(); used != 0 {
		t.Errorf("%d bytes still allocated", used)
	}
}

// sizes is around those at which transfers are cut.
var sizes = []int{1, 63, 64, 4096, 65407, 65408, 65409, 1 << 20, 5<<20 + 3}

// transfers allocates, reads, writes, reads and frees regions of these sizes.
func transfers(t *testing.T, c *dsmclient.Client, sizes ...int) {
	ctx := context.Background()
	for _, n := range sizes {
		p, err := c.Alloc(ctx, uint64(n))
		if err != nil {
			t.Fatalf("alloc of %d bytes: %v", n, err)
		}
		want, got := fill(n, uint64(n)), make([]byte, n)
		if k, err := c.Read(ctx, p, got); k != n || err != nil || !bytes.Equal(got, make([]byte, n)) {
			t.Fatalf("fresh read of %d bytes: %d, %v", n, k, err)
		}
		if k, err := c.Write(ctx, p, want); k != n || err != nil {
			t.Fatalf("write of %d bytes: %d, %v", n, k, err)
		}
		if k, err := c.Read(ctx, p, got); k != n || err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read of %d bytes: %d, %v", n, k, err)
		}
		if err := c.Free(ctx, p); err != nil {
			t.Fatal(err)
		}
		if err := c.Free(ctx, p); fault.CodeOf(err) != fault.NotFound {
			t.Fatalf("second free: %v", err)
		}
	}
}

func TestDenialIsTypedAndAtOnce(t *testing.T) {
	r := newRack(t, wire.Config{}, 1)
	owner, stranger := r.Client(1, 1), r.Client(2, 1)
	ctx := context.Background()
	p, err := owner.Alloc(ctx, 64)
	if err != nil {
		t.Fatal(err)
	}
	r.Deny(func(node, to dsmpacket.Pointer) bool {
		return node[15] == 2 && (to.Op() == dsmpacket.OpRead || to.Op() == dsmpacket.OpWrite || to.Op() == dsmpacket.OpFree)
	})
	b := make([]byte, 64)
	_, readErr := stranger.Read(ctx, p, b)
	_, writeErr := stranger.Write(ctx, p, b)
	for _, err := range []error{readErr, writeErr, stranger.Free(ctx, p)} {
		if !errors.Is(err, &fault.Error{Code: fault.PermissionDenied}) {
			t.Errorf("got %v", err)
		}
	}
	if n, err := owner.Write(ctx, p, b); n != 64 || err != nil {
		t.Errorf("owner's write: %d, %v", n, err)
	}
}
