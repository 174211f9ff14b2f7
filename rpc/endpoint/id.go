package endpoint

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// ChildID is the id of the call that a branch of an execution makes as its
// index-th operation: the first 128 bits of SHA-256 over parent, branch (8 bytes),
// index (4) and "call". A re-run of the execution derives the same ids, and so
// finds the answers to its calls in the log instead of making them again.
func ChildID(parent rpcpacket.ID, branch, index uint32) rpcpacket.ID {
	b := make([]byte, 0, 32)
	b = append(b, parent[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(branch))
	b = binary.BigEndian.AppendUint32(b, index)
	sum := sha256.Sum256(append(b, "call"...))
	return rpcpacket.ID(sum[:16])
}

// MainID is the id of the durable main of this name: it stays the same whenever
// and wherever the program starts again.
func MainID(name string) rpcpacket.ID {
	sum := sha256.Sum256([]byte("main" + name))
	return rpcpacket.ID(sum[:16])
}

// nested marks the numbers of branches within branches.
const nested = 1 << 31

// ChildBranch is the number of the branch that a branch opens as its index-th
// operation. The trunk's (branch 0) branches are numbered by index, so they never
// clash; those of others have 31 bits of a hash, and a clash must be refused.
func ChildBranch(branch, index uint32) uint32 {
	if branch == 0 && index < nested {
		return index
	}
	b := binary.BigEndian.AppendUint32(nil, branch)
	sum := sha256.Sum256(binary.BigEndian.AppendUint32(b, index))
	return binary.BigEndian.Uint32(sum[:]) | nested
}
