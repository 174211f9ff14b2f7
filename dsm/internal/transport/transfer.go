package transport

import (
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Scope is on whose behalf an operation is: fields of the packet header.
type Scope struct {
	Execution [16]byte
	Branch    uint64
	Index     uint32
}

// in reports whether two operations are in the same branch of an execution.
func (s Scope) in(o Scope) bool { return s.Execution == o.Execution && s.Branch == o.Branch }

// Transfer is one operation of any size. Fill in the first part, Start it, and
// read the outcome when Ready.Done names it or Cancel has returned; until then
// the endpoint owns it, Buf included.
type Transfer struct {
	Op packet.Op
	// Pointer is where; for an alloc only its machine counts.
	Pointer packet.Pointer
	// Buf is read into or written from; it must not be empty then.
	Buf []byte
	// Size is how many bytes to allocate. With Recall it must have been done by an
	// earlier run of the execution; else NotFound.
	Size   uint64
	Recall bool
	Scope  Scope
	// Tag is the caller's own.
	Tag any

	// N is how many bytes, from the first on, are certainly done.
	N int
	// Status is OK, or why the byte at N is not done.
	Status fault.Code
	// Local is true if Status arose here and the server did not say so.
	Local bool
	// Region is what an alloc got.
	Region packet.Region

	begun      time.Duration
	issued     int  // bytes that have become requests
	open       int  // requests whose fate is not known
	queued     bool // waits in its peer's queue, between prev and next
	prev, next *Transfer
	failed     bool // issues no more
	failAt     int  // lowest offset that failed
	orphan     bool // started by the endpoint itself, nobody waits
}

// single reports whether the transfer is one request without a buffer.
func (t *Transfer) single() bool { return t.Op == packet.OpAlloc || t.Op == packet.OpFree }

// more reports whether there is something left to request.
func (t *Transfer) more() bool {
	if t.failed {
		return false
	}
	if t.single() {
		return t.issued == 0
	}
	return t.issued < len(t.Buf)
}

// fail notes that the bytes at off were not done. The lowest offset counts.
func (t *Transfer) fail(off int, status fault.Code, local bool) {
	if !t.failed || off < t.failAt {
		t.failed, t.failAt, t.Status, t.Local = true, off, status, local
	}
}

// conclude sets N.
func (t *Transfer) conclude() {
	t.N = len(t.Buf)
	if t.failed {
		t.N = t.failAt
	}
}
