package endpoint

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"net/netip"

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

// Node returns the key of the node with an address, for its plain calls (Prover).
func (s Secret) Node(address netip.Addr) Key { return s.derive("node", address.AsSlice()) }

// ToMemory is what memory blades know a durable main as, whose id is known to everybody whom it calls:
// any node that knows the name at a memory blade may go on with what the main has allocated. Only the
// main's nodes are told the name. It is the id, encrypted by AES-128.
func (s Secret) ToMemory(main rpcpacket.ID) rpcpacket.ID {
	s.memory().Encrypt(main[:], main[:])
	return main
}

// FromMemory is the inverse of ToMemory.
func (s Secret) FromMemory(name rpcpacket.ID) rpcpacket.ID {
	s.memory().Decrypt(name[:], name[:])
	return name
}

func (s Secret) memory() cipher.Block {
	b, err := aes.NewCipher(s.derive("memory", nil)[:16])
	if err != nil {
		panic(err) // the key has the right size
	}
	return b
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
func ChildID(key Key, parent rpcpacket.ID, branch, index uint32) rpcpacket.ID {
	id, _ := Child(key, rpcpacket.PolicyRecover, parent, branch, index)
	return id
}

// Proof shows that whoever sends a call direct may use its id. The caller tells it to the node that
// it calls, and to nobody else. That node tells it to the Gatekeeper, if the Gatekeeper is to decide
// about rights. It is zero without a key.
//
// By the policies fate-share and tainted a callee that fails has its caller's program started anew. So the
// proof of such a call has the policy in it, and cannot be made of that of another policy.
type Proof [16]byte

// bind returns a MAC's input of a call's id and policy; nil if the policy is none of these.
func bind(id rpcpacket.ID, policy rpcpacket.Policy) []byte {
	if policy != rpcpacket.PolicyFateShare && policy != rpcpacket.PolicyTainted {
		return nil
	}
	return append(id[:], byte(policy))
}

// Prover makes the proofs of a node's plain calls. Its methods must not be called
// concurrently.
type Prover struct {
	mac hash.Hash // nil without a key
	sum []byte
}

// NewProver returns the Prover of the node with a key.
func NewProver(key Key) *Prover {
	if key == nil {
		return new(Prover)
	}
	return &Prover{mac: hmac.New(sha256.New, key)}
}

// Prove returns the proof of a plain call: the first 128 bits of an HMAC-SHA-256 with the node's key of
// its id and, where the proof binds it, its policy (1 byte).
func (p *Prover) Prove(id rpcpacket.ID, policy rpcpacket.Policy) (proof Proof) {
	if p.mac == nil {
		return proof
	}
	p.mac.Reset()
	if b := bind(id, policy); b != nil {
		p.mac.Write(b)
	} else {
		p.mac.Write(id[:])
	}
	p.sum = p.mac.Sum(p.sum[:0])
	copy(proof[:], p.sum)
	return proof
}

// Child returns the ChildID of a call, and its proof: the second 128 bits of the same HMAC or, where the proof
// binds the policy, the first 128 bits of one of id and policy (1 byte) with the same key.
func Child(key Key, policy rpcpacket.Policy, parent rpcpacket.ID, branch, index uint32) (rpcpacket.ID, Proof) {
	b := make([]byte, 0, 32)
	b = append(b, parent[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(branch))
	b = binary.BigEndian.AppendUint32(b, index)
	b = append(b, "call"...)
	if key == nil {
		sum := sha256.Sum256(b)
		id := rpcpacket.ID(sum[:16])
		id.Derive()
		return id, Proof{}
	}
	h := hmac.New(sha256.New, key)
	h.Write(b)
	sum := h.Sum(b[:0])
	id, proof := rpcpacket.ID(sum[:16]), Proof(sum[16:])
	id.Derive()
	if b := bind(id, policy); b != nil {
		h.Reset()
		h.Write(b)
		proof = Proof(h.Sum(nil))
	}
	return id, proof
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
