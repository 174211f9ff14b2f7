package endpoint

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/rpc/packet"
)

// ChildID is the id of the index-th call that a branch of an execution makes:
// the first 128 bits of SHA-256 over parent, branch and index. A re-run of the
// execution derives the same ids, and so finds the answers to its calls in the
// log instead of making them again.
func ChildID(parent packet.ID, branch, index uint32) packet.ID {
	var b [24]byte
	copy(b[:], parent[:])
	binary.BigEndian.PutUint32(b[16:], branch)
	binary.BigEndian.PutUint32(b[20:], index)
	sum := sha256.Sum256(b[:])
	return packet.ID(sum[:16])
}
