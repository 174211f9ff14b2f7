package dsmpacket

import (
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// Chunk is what one append to a ledger carries (design section 3): whole records, or a
// part of one record that does not fit into a datagram.
//
//	records:  length (unsigned varint) | bytes | length | bytes | …
//	part:     bytes of one record, whose other parts are in the chunks beside it
//
// A chunk is a part if it continues, or if the chunk before it does.
type Chunk struct {
	// Number counts the chunks of a ledger from 1.
	Number uint64
	// Continues says that the record goes on in the next chunk.
	Continues bool
	// Data is at most what fits into a datagram.
	Data []byte
}

// ChunkCost is how many bytes of a ledger's space a chunk is charged with beside its data:
// about what it takes.
const ChunkCost = 64

// RecordSize is how many bytes a record of n bytes takes in a chunk of whole records.
func RecordSize(n int) int {
	var b [binary.MaxVarintLen64]byte
	return binary.PutUvarint(b[:], uint64(n)) + n
}

// AppendRecord appends a whole record to a chunk's data.
func AppendRecord(chunk, record []byte) []byte {
	return append(binary.AppendUvarint(chunk, uint64(len(record))), record...)
}

// Records turns chunks back into records. The zero Records begins with any chunk that
// begins with a record.
type Records struct {
	next uint64 // number of the next chunk, 0 before the first
	part []byte // of a record whose other parts are to come
	open bool   // part is in use
}

// Chunk takes the next chunk and calls yield for each record that it completes. The
// records of a chunk of whole records alias its data. It returns an error that wraps
// wirefmt.ErrFormat for a chunk out of its order or with data that is no record; what
// came before the fault has been yielded.
func (r *Records) Chunk(c Chunk, yield func(record []byte)) error {
	if c.Number == 0 || r.next != 0 && c.Number != r.next {
		return wirefmt.Errorf("ledger: chunk %d, want %d", c.Number, max(r.next, 1))
	}
	r.next = c.Number + 1
	if r.open || c.Continues {
		r.part, r.open = append(r.part, c.Data...), c.Continues
		if !r.open {
			yield(r.part)
			r.part = nil
		}
		return nil
	}
	for data := c.Data; len(data) > 0; {
		n, k := binary.Uvarint(data)
		if k <= 0 || n > uint64(len(data)-k) {
			return wirefmt.Errorf("ledger: chunk %d: no record at byte %d", c.Number, len(c.Data)-len(data))
		}
		yield(data[k : k+int(n) : k+int(n)])
		data = data[k+int(n):]
	}
	return nil
}

// Whole reports whether the chunks taken so far end with a whole record.
func (r *Records) Whole() bool { return !r.open }
