package endpoint

import (
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestChildID: ids of different keys, parents and places differ, and the same ones are the same.
func TestChildID(t *testing.T) {
	secret := Secret{1}
	seen := map[[16]byte]bool{}
	for _, key := range []Key{nil, secret.Service(1), secret.Service(2), secret.Main(rpcpacket.ID{7: 1}), Secret{2}.Service(1)} {
		for _, parent := range []byte{0, 1} {
			for branch := range uint32(3) {
				for index := range uint32(100) {
					id := ChildID(key, [16]byte{parent}, branch, index)
					if seen[id] || id != ChildID(slices.Clone(key), [16]byte{parent}, branch, index) {
						t.Fatalf("id of %d, %d, %d under %x is not its own", parent, branch, index, key)
					}
					seen[id] = true
				}
			}
		}
	}
}
