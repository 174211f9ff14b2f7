package wal

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
