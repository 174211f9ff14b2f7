package wal

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/disk"
)

// Disk is where a log in memory keeps what is logged. It outlives the logs that
// are opened on it, as a disk does, and fails as one does: see Crash and
// LosePower. The zero Disk is empty. Its methods may be called concurrently with
// those of its log.
type Disk struct {
	// Pause, if set, makes the disk slow: it tells how long the next commit takes. It may
	// be called concurrently.
	Pause func() time.Duration

	mu       disk.Openings
	records  map[uint64][]byte
	unsynced []undo // what LosePower takes back, oldest first
	full     bool   // see Fill
	refused  int    // commits since the disk was created
}

// undo is how to take one commit back.
type undo struct {
	put     []uint64
	deleted map[uint64][]byte
}

// OpenMemory opens the log on a disk in memory. It fails with ErrLocked while
// another one is open, until Close or Crash.
func OpenMemory(d *Disk, o Options) (*Log, error) {
	s, err := d.opened(o.Sync)
	if err != nil {
		return nil, fmt.Errorf("the log is %w", err)
	}
	l, err := open(s, o)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return l, nil
}

// opened opens the disk.
func (d *Disk) opened(sync bool) (*memoryStore, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o, err := d.mu.Open()
	if err != nil {
		return nil, err
	}
	if d.records == nil {
		d.records = map[uint64][]byte{}
	}
	return &memoryStore{o, d, sync}, nil
}

// Crash ends the Gatekeeper that has the log open: nothing more that it submits,
// or has submitted and was not told is logged, is logged. Its Log only fails
// from now on, and another can be opened. What is logged stays.
func (d *Disk) Crash() { d.mu.Crash() }

// LosePower crashes the Gatekeeper and takes back the last commits that were not
// synced: all but the first keep of them. It returns how many it took back. With
// Options.Sync there are none.
func (d *Disk) LosePower(keep int) int {
	d.Crash()
	d.mu.Lock()
	defer d.mu.Unlock()
	lost := d.unsynced[min(keep, len(d.unsynced)):]
	for _, u := range slices.Backward(lost) {
		for _, s := range u.put {
			delete(d.records, s)
		}
		maps.Copy(d.records, u.deleted)
	}
	d.unsynced = nil
	return len(lost)
}

// Flush syncs the disk: what is logged survives LosePower.
func (d *Disk) Flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unsynced = nil
}

// Fill makes the disk full, or gives it room again. Commits on a full disk fail. Every other
// one of them is on the disk all the same, as when a write fails after its last byte.
func (d *Disk) Fill(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

// Damage is a record that a fault of the disk has changed.
type Damage struct {
	disk      *Disk
	sequence  uint64
	good, bad []byte
}

// Damage flips a bit of the newest record, or cuts it short; false if there is no record.
func (d *Disk) Damage(short bool) (*Damage, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	newest, some := uint64(0), false
	for sequence, data := range d.records {
		if len(data) > 0 && (!some || int64(sequence-newest) > 0) {
			newest, some = sequence, true
		}
	}
	if !some {
		return nil, false
	}
	a := &Damage{disk: d, sequence: newest, good: d.records[newest]}
	a.bad = slices.Clone(a.good)
	if a.bad[len(a.bad)/2] ^= 1; short {
		a.bad = a.bad[:len(a.good)/2]
	}
	d.records[newest] = a.bad
	return a, true
}

// There reports whether the log still has the changed record. A loss of power may have taken it back.
func (a *Damage) There() bool {
	a.disk.mu.Lock()
	defer a.disk.mu.Unlock()
	return a.there()
}

func (a *Damage) there() bool {
	now, ok := a.disk.records[a.sequence]
	return ok && bytes.Equal(now, a.bad)
}

// Mend makes the record what it was, if it is there.
func (a *Damage) Mend() {
	a.disk.mu.Lock()
	defer a.disk.mu.Unlock()
	if a.there() {
		a.disk.records[a.sequence] = a.good
	}
}

// errFull is what a commit gets on a full disk.
var errFull = errors.New("simulated: no space left on device")

// maxUnsynced is how many commits a Disk can lose; older ones have reached it by
// themselves, as an operating system writes back its page cache.
const maxUnsynced = 1024

// memoryStore is one opening of a Disk.
type memoryStore struct {
	disk.Opening
	disk *Disk
	sync bool
}

func (s *memoryStore) commit(c change) error {
	if s.disk.Pause != nil {
		<-time.After(s.disk.Pause())
	}
	if err := s.Begin(); err != nil {
		return err
	}
	defer s.disk.mu.Unlock()
	d, u := s.disk, undo{deleted: map[uint64][]byte{}}
	var failure error
	if d.full {
		failure = errFull
		if d.refused++; d.refused%2 == 1 {
			return failure
		}
	}
	for _, p := range c.puts {
		d.records[p.sequence] = p.data
		u.put = append(u.put, p.sequence)
	}
	for _, sequence := range c.deletes {
		u.deleted[sequence] = d.records[sequence]
		delete(d.records, sequence)
	}
	if s.sync {
		return failure
	}
	if d.unsynced = append(d.unsynced, u); len(d.unsynced) > maxUnsynced {
		d.unsynced = slices.Delete(d.unsynced, 0, len(d.unsynced)-maxUnsynced)
	}
	return failure
}

func (s *memoryStore) get(sequence uint64) ([]byte, error) {
	if err := s.Begin(); err != nil {
		return nil, err
	}
	defer s.disk.mu.Unlock()
	b, ok := s.disk.records[sequence]
	if !ok {
		return nil, corruptf("record %d is not there", sequence)
	}
	return slices.Clone(b), nil
}

func (s *memoryStore) scan() iter.Seq2[put, error] {
	return func(yield func(put, error) bool) {
		if err := s.Begin(); err != nil {
			yield(put{}, err)
			return
		}
		var all []put
		for sequence, data := range s.disk.records {
			all = append(all, put{sequence, data})
		}
		s.disk.mu.Unlock()
		slices.SortFunc(all, func(a, b put) int { return int(int64(a.sequence - b.sequence)) })
		for _, p := range all {
			if !yield(p, nil) {
				return
			}
		}
	}
}

func (s *memoryStore) footprint() (n uint64) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	for _, b := range s.disk.records {
		n += uint64(len(b))
	}
	return n
}

func (s *memoryStore) close() error { return s.Close() }
