package wal

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"time"
)

// Kind says what a record is, and thereby what its ID names. The numbers are on
// disk, so they stay, and those of kinds that are gone are not used again.
type Kind uint8

// The kinds. A comment says what ID is and which fields are used.
const (
	// KindMain is a durable main, by execution id: Caller (the node that runs it, or has run it last),
	// Order (of its last checkpoint among its operations, when it was over last), Attempt (1 if it is over), Data.
	KindMain Kind = 3
	// KindNode is what must be known of a node, by AddrID: Callee (its last
	// incarnation), Data.
	KindNode Kind = 6
	// KindRegion is a region that memory blades have to free, by its base pointer: Data (its class).
	KindRegion Kind = 7
	// KindRack is what must be known of the rack as a whole, by the zero id: Data.
	KindRack Kind = 8
	// KindRecovery is a recovery under way, by AddrID of the failed node: Data.
	KindRecovery Kind = 9
	// KindBlade is what must be known of a blade, by NameID: Data.
	KindBlade Kind = 10
	// KindMirror is which blades have copies of a memory machine, by the machine in byte 0
	// of the id: Data.
	KindMirror Kind = 14
	// KindExport is a service that a node exports, by the low halves of the service's
	// and the node's addresses: Callee (the node), Data.
	KindExport Kind = 15
	// KindOwner is who the name of a service or of a durable main belongs to, by NameID of
	// the kind and the name: Data.
	KindOwner Kind = 16
	// KindBatch is who has a batch of region slots, by the number of the batch in bytes 0-3: Callee (the node; zero for
	// nobody), Attempt (the memory machine).
	KindBatch Kind = 19
	// KindRegisters is what the switch's registers had when a backup was made, of a batch of region slots (bytes 0-3: 1) or a block of call
	// slots (2), by its number in bytes 4-7: Data. Only backups have it, and racks that begin from one, until their switch has it.
	KindRegisters Kind = 20
	// KindLease is a standing lease, by its call slot in bytes 0-3: Callee (its owner's incarnation), Data.
	KindLease Kind = 21
	kindEnd   Kind = 22
)

var kindNames = [...]string{3: "main", 6: "node", "region", "rack", "recovery", "blade", 14: "mirror", "export", "owner", 19: "batch", "registers", "lease"}

// String returns the kind's name.
func (k Kind) String() string {
	if k.valid() {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

func (k Kind) valid() bool { return k < kindEnd && kindNames[k] != "" }

// ID names what a record is about.
type ID [16]byte

// AddrID is the ID of an IPv6 address: of a node, or of a region's pointer.
func AddrID(a netip.Addr) ID { return ID(a.As16()) }

// NameID is the ID of a name: the first half of its SHA-256.
func NameID(name string) ID {
	h := sha256.Sum256([]byte(name))
	return ID(h[:16])
}

// Key is what a log has at most one record of.
type Key struct {
	Kind Kind
	ID   ID
}

// String prints the kind and the id in hexadecimal.
func (k Key) String() string { return fmt.Sprintf("%s %x", k.Kind, k.ID[:]) }

// Node is one incarnation of a node; the zero Node is none.
type Node struct {
	Address     netip.Addr
	Incarnation uint32
}

// IsZero reports whether n names no node.
func (n Node) IsZero() bool { return n == Node{} }

// Record is one thing that must not be forgotten. All fields after ID are
// optional; which ones a Kind has is for the Gatekeeper to know.
type Record struct {
	Kind Kind
	ID   ID
	// Sequence is the record's place in the log, from 1; Submit sets it.
	Sequence uint64
	// Time is when it was made. It is kept to the nanosecond, in UTC.
	Time           time.Time
	Caller, Callee Node
	Order          uint64
	Attempt        uint32
	// Data is what else belongs to it, in a form of its owner's.
	Data []byte
}

// Key is what the record is about.
func (r *Record) Key() Key { return Key{r.Kind, r.ID} }

// MaxBatch is how many bytes one batch may have on disk.
const MaxBatch = 256 << 20

// Batch is a set of changes that are logged as a whole or not at all. Changes of
// one key take effect in the order in which they were added. The zero Batch is
// empty. Once submitted, neither it nor the bytes in its records may change.
type Batch struct {
	ops  []op
	size int
}

// op is one change; without a record it deletes.
type op struct {
	key    Key
	record *Record
}

// Put logs a record, in place of the one that the log has for its key.
func (b *Batch) Put(r Record) {
	b.ops = append(b.ops, op{r.Key(), &r})
	b.size += r.size()
}

// Delete takes the record of a key out of the log; if there is none, nothing
// happens.
func (b *Batch) Delete(kind Kind, id ID) {
	b.ops = append(b.ops, op{key: Key{kind, id}})
}

// Append adds the changes of another batch behind this one's.
func (b *Batch) Append(o *Batch) {
	b.ops = append(b.ops, o.ops...)
	b.size += o.size
}

// Len is the number of changes.
func (b *Batch) Len() int { return len(b.ops) }
