package endpoint

import (
	"crypto/aes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Secret is what all Keys of a rack follow from. Its Gatekeeper draws it and tells nobody.
type Secret [32]byte

// Key is what the executions of one service, or of one durable main, name their calls with.
// The nodes that run them know it, and the Gatekeeper. Nil, in racks without a Gatekeeper, stands
// for ids that anybody can compute who knows the execution's.
type Key []byte

// Service returns the key of the service with a hash.
func (s Secret) Service(hash uint64) Key {
	return s.derive("service", binary.BigEndian.AppendUint64(nil, hash))
}

// Main returns the key of the durable main with an id.
func (s Secret) Main(id rpcpacket.ID) Key { return s.derive("main", id[:]) }

// ToMemory is what memory blades know a durable main as, whose id is known to everybody whom it calls:
// any node that knows the name at a memory blade may go on with what the main has allocated. Only the
// main's nodes are told the name. It is the id, encrypted by AES-128.
func (s Secret) ToMemory(main rpcpacket.ID) rpcpacket.ID {
	b, err := aes.NewCipher(s.derive("memory", nil)[:16])
	if err != nil {
		panic(err) // the key has the right size
	}
	b.Encrypt(main[:], main[:])
	return main
}

func (s Secret) derive(kind string, of []byte) Key {
	h := hmac.New(sha256.New, s[:])
	h.Write([]byte(kind))
	h.Write(of)
	return h.Sum(nil)
}

// ChildID is the id of the call that a branch of an execution makes as its
// index-th operation: the first 128 bits of an HMAC-SHA-256 with the key of the
// execution's service or main over parent, branch (8 bytes), index (4) and "call"; of
// a plain SHA-256 if there is no key. A re-run of the execution derives the same ids, at
// another node too, and so finds the answers to its calls at their callees instead of making them
// again. Nobody without the key knows an id before the call has been made. The id
// is Derived, so that it is no plain call's.
func ChildID(key Key, parent rpcpacket.ID, branch, index uint32) (id rpcpacket.ID) {
	b := make([]byte, 0, 32)
	b = append(b, parent[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(branch))
	b = binary.BigEndian.AppendUint32(b, index)
	b = append(b, "call"...)
	if key == nil {
		sum := sha256.Sum256(b)
		copy(id[:], sum[:])
	} else {
		h := hmac.New(sha256.New, key)
		h.Write(b)
		copy(id[:], h.Sum(b[:0]))
	}
	id.Derive()
	return id
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
