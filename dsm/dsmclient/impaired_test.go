package dsmclient_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/memrack"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// Whatever the network does, transfers of any size are right.
func TestTransfersThroughABadNetwork(t *testing.T) {
	for _, mtu := range []int{1500, 9000, 65535} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("mtu %d, seed %d", mtu, seed), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					r := newImpairedRack(t, memrack.Virtual(seed, mtu), 2, memrack.Bad)
					var running sync.WaitGroup
					for node := range uint64(2) {
						c := r.Client(node+1, 1)
						for worker := range uint64(3) {
							running.Go(func() { shuffle(t, c, seed<<8|node<<4|worker) })
						}
					}
					running.Wait()
					for i, m := range r.Memories {
						if used := m.Used(); used != 0 {
							t.Errorf("machine %d: %d bytes still allocated", i+1, used)
						}
					}
				})
			})
		}
	}
}

// shuffle writes and reads random parts of a region and compares each time.
func shuffle(t *testing.T, c *dsmclient.Client, seed uint64) {
	ctx, rnd := context.Background(), rand.New(rand.NewPCG(seed, 3))
	size := []int{64, 5000, 1 << 18}[seed%3]
	p, err := c.Alloc(ctx, uint64(size))
	if err != nil {
		t.Error(err)
		return
	}
	model := make([]byte, size)
	for i := range 8 {
		at := rnd.IntN(size)
		n := 1 + rnd.IntN(size-at)
		part := model[at : at+n]
		if i%2 == 0 {
			copy(part, fill(n, seed+uint64(i)))
			if k, err := c.Write(ctx, p.Add(int64(at)), part); k != n || err != nil {
				t.Errorf("write of %d bytes: %d, %v", n, k, err)
			}
		}
		got := make([]byte, n)
		if k, err := c.Read(ctx, p.Add(int64(at)), got); k != n || err != nil {
			t.Errorf("read of %d bytes: %d, %v", n, k, err)
		}
		if !bytes.Equal(got, part) {
			t.Errorf("seed %d, round %d: %d bytes at %d differ", seed, i, n, at)
			return
		}
	}
	if err := c.Free(ctx, p); err != nil {
		t.Error(err)
	}
}
