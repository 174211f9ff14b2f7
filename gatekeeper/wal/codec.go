package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"time"
)

// A record on disk, in network byte order:
//
//	 0  2  magic 0xB10C
//	 2  1  version
//	 3  1  kind
//	 4  4  CRC-32C of all but these four bytes
//	 8  8  sequence
//	16 16  id
//	32  2  which fields follow, a bit for each in this order
//	34     time 8, caller 20, callee 20, order 8, attempt 4, data 4 + length
//
// There is one form for each record: a field that is zero is not there.
const (
	recordMagic   = 0xB10C
	recordVersion = 1
	headerSize    = 34
)

// Bits of the fields. Bits 1 and 6 were those of fields that are gone.
const (
	hasTime    = 1 << 0
	hasCaller  = 1 << 2
	hasCallee  = 1 << 3
	hasOrder   = 1 << 4
	hasAttempt = 1 << 5
	hasData    = 1 << 7
	hasAll     = hasTime | hasCaller | hasCallee | hasOrder | hasAttempt | hasData
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:4], castagnoli), castagnoli, b[8:])
}

// append appends the record's form on disk.
func (r *Record) append(b []byte) []byte {
	be := binary.BigEndian
	start := len(b)
	b = be.AppendUint16(b, recordMagic)
	b = append(b, recordVersion, byte(r.Kind), 0, 0, 0, 0)
	b = be.AppendUint64(b, r.Sequence)
	b = append(b, r.ID[:]...)
	b = be.AppendUint16(b, r.fields())
	if !r.Time.IsZero() {
		b = be.AppendUint64(b, uint64(r.Time.UnixNano()))
	}
	b = r.Caller.append(b)
	b = r.Callee.append(b)
	if r.Order != 0 {
		b = be.AppendUint64(b, r.Order)
	}
	if r.Attempt != 0 {
		b = be.AppendUint32(b, r.Attempt)
	}
	if len(r.Data) > 0 {
		b = be.AppendUint32(b, uint32(len(r.Data)))
		b = append(b, r.Data...)
	}
	be.PutUint32(b[start+4:], checksum(b[start:]))
	return b
}

// MarshalBinary returns the record's form on disk.
func (r *Record) MarshalBinary() ([]byte, error) { return r.append(make([]byte, 0, r.size())), nil }

// UnmarshalBinary reads what MarshalBinary has returned; the record keeps b. An error wraps
// ErrCorrupt or ErrVersion.
func (r *Record) UnmarshalBinary(b []byte) (err error) {
	*r, err = parse(b)
	return err
}

func (r *Record) fields() (f uint16) {
	for k, set := range [...]bool{!r.Time.IsZero(), 2: !r.Caller.IsZero(), !r.Callee.IsZero(), r.Order != 0, r.Attempt != 0, 7: len(r.Data) > 0} {
		if set {
			f |= 1 << k
		}
	}
	return f
}

func (n Node) append(b []byte) []byte {
	if n.IsZero() {
		return b
	}
	a := n.Address.As16()
	return binary.BigEndian.AppendUint32(append(b, a[:]...), n.Incarnation)
}

// size is how many bytes the record takes on disk.
func (r *Record) size() int {
	n, fields := headerSize, r.fields()
	for k, size := range [...]int{8, 2: 20, 20, 8, 4, 7: 4 + len(r.Data)} {
		if fields&(1<<k) != 0 {
			n += size
		}
	}
	return n
}

// parse reads a record; Data aliases b. Errors wrap ErrCorrupt, or
// ErrVersion for a record that is whole but newer.
func parse(b []byte) (r Record, err error) {
	be := binary.BigEndian
	switch {
	case len(b) < headerSize:
		return r, corruptf("a record of %d bytes, the header has %d", len(b), headerSize)
	case be.Uint16(b) != recordMagic:
		return r, corruptf("a record begins with %#04x", be.Uint16(b))
	case b[2] != recordVersion:
		return r, versionError("a record", uint64(b[2]), recordVersion)
	case checksum(b) != be.Uint32(b[4:]):
		return r, corruptf("record %d: wrong checksum", be.Uint64(b[8:]))
	}
	r = Record{Kind: Kind(b[3]), Sequence: be.Uint64(b[8:]), ID: ID(b[16:32])}
	d := decoder{b: b[headerSize:], fields: be.Uint16(b[32:])}
	d.read(&r)
	switch {
	case !r.Kind.valid(), d.fields&^hasAll != 0:
		return r, fmt.Errorf("the log is %w: record %d is of kind %d and has fields %#x", ErrVersion, r.Sequence, uint8(r.Kind), d.fields)
	case d.bad, len(d.b) > 0, r.fields() != d.fields:
		return r, corruptf("record %d: fields %#x do not fit its %d bytes", r.Sequence, d.fields, len(b))
	}
	return r, nil
}

// decoder takes fields off a record.
type decoder struct {
	b      []byte
	fields uint16
	bad    bool
}

func (d *decoder) read(r *Record) {
	be := binary.BigEndian
	if b := d.take(hasTime, 8); b != nil {
		r.Time = time.Unix(0, int64(be.Uint64(b))).UTC()
	}
	r.Caller, r.Callee = d.node(hasCaller), d.node(hasCallee)
	if b := d.take(hasOrder, 8); b != nil {
		r.Order = be.Uint64(b)
	}
	if b := d.take(hasAttempt, 4); b != nil {
		r.Attempt = be.Uint32(b)
	}
	r.Data = d.blob(hasData)
}

// take returns the next n bytes if the field is there, else nil.
func (d *decoder) take(field uint16, n int) []byte {
	if d.fields&field == 0 || d.bad {
		return nil
	}
	if n > len(d.b) {
		d.bad = true
		return nil
	}
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) node(field uint16) Node {
	b := d.take(field, 20)
	if b == nil {
		return Node{}
	}
	return Node{netip.AddrFrom16([16]byte(b)), binary.BigEndian.Uint32(b[16:])}
}

func (d *decoder) blob(field uint16) []byte {
	b := d.take(field, 4)
	if b == nil {
		return nil
	}
	return d.take(field, int(binary.BigEndian.Uint32(b)))
}
