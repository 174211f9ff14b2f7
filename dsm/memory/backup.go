package memory

import (
	"encoding/binary"
	"os"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory/ledger"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/disk"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// A backup needs the ledgers and the regions of all memory blades as of one moment: if a node
// has heard that a record is settled, and has told others, the record must be in the backup
// when theirs are. So every blade changes nothing from before the first copy is made until
// after the last one is. Nothing is settled meanwhile, so nobody learns of what a copy lacks.
//
// Ledgers are copied in memory. Regions go to a file without a name, as the items that would
// fill another copy of the machine: nearly all of them while requests go on, the rest during
// the hold.

const (
	// holdTime is for how long requests are held at most: a Gatekeeper that ends in between
	// costs the rack no more.
	holdTime = 2 * time.Second
	// backupTime is for how long a copy is kept for a reader that says nothing.
	backupTime = 10 * time.Minute
	// spoolStep is how many bytes of regions are copied at a time: some 500 µs, for which
	// requests wait. prepareTime is after how long a prepare is answered that is not done.
	spoolStep, prepareTime = 1 << 20, time.Second
	// spoolItem is how large an item is at most, and so a frame of the file.
	spoolItem = 64 << 10
)

// backup is a copy of what a server has.
type backup struct {
	id, birth, rack uint64
	incarnation     uint32
	kept            []ledger.Kept
	regions         *os.File // nil: they are not saved
	size            int64    // of regions
	first           uint64   // bytes of regions that there were to copy at first
	made            bool     // the copy is complete
	until           time.Time
	asked           time.Time // when the reader has last asked for something
}

// holds reports whether requests about ledgers have to wait.
func (b *backup) holds() bool { return b != nil && !b.until.IsZero() }

// forgetBackup drops a copy that nobody reads any more.
func (s *Server) forgetBackup() {
	if b := s.backup; b != nil && time.Since(b.asked) > backupTime {
		s.dropBackup()
	}
}

// dropBackup ends a backup.
func (s *Server) dropBackup() {
	b := s.backup
	if b == nil {
		return
	}
	s.endHold()
	if b.regions != nil {
		if !b.made {
			s.store.EndFill()
		}
		_ = b.regions.Close() // it has no name
	}
	s.backup = nil
}

// endHold lets requests and commands go on.
func (s *Server) endHold() {
	b := s.backup
	if b.until.IsZero() {
		return
	}
	b.until = time.Time{}
	if b.regions != nil {
		s.store.EndFill()
	}
}

// Backup carries out a step of a backup.
func (s *Server) Backup(q control.Backup) (part control.BackupPart, err error) {
	began := time.Now()
	for more := true; more; {
		err := s.now(func(*store.Store) error {
			var err error
			part, err = s.backupStep(q)
			if err != nil { // final: it is not to be asked for again
				part = control.BackupPart{Outcome: control.Outcome{Code: fault.CodeOf(err), Message: err.Error()}}
			}
			return nil
		})
		if err != nil {
			return part, err
		}
		more = q.Step == control.BackupPrepare && part.Code == fault.OK && !part.Ready && time.Since(began) < prepareTime
	}
	return part, nil
}

// backupStep is Backup under the server's mutex; of a prepare, some of it.
func (s *Server) backupStep(q control.Backup) (part control.BackupPart, err error) {
	if (s.backup == nil || s.backup.id != q.ID) && (q.Step == control.BackupPrepare || q.Step == control.BackupHold) {
		if err := s.beginBackup(q); err != nil {
			return part, err
		}
	}
	b := s.backup
	if b == nil || b.id != q.ID {
		return part, fault.New(fault.NotFound, "backup", "the memory server has no copy for backup %#x (any more)", q.ID)
	}
	b.asked = time.Now()
	switch q.Step {
	case control.BackupPrepare:
		part.Ready, err = s.prepareBackup()
		return part, err
	case control.BackupHold:
		err := s.holdBackup()
		return control.BackupPart{Birth: b.birth, Rack: b.rack, Incarnation: b.incarnation}, err
	case control.BackupRelease:
		_, closed := s.store.Fills()
		held := b.holds() && b.birth == s.ledgers.birth && (b.regions == nil || closed)
		if s.endHold(); !held {
			return part, fault.New(fault.Stale, "backup", "requests were not held back until all was copied: try again")
		}
		return part, nil
	case control.BackupRead:
		return b.read(q.From)
	case control.BackupDrop:
		s.dropBackup()
		return part, nil
	}
	return part, fault.New(fault.BadRequest, "backup", "unknown step %q", q.Step)
}

// beginBackup begins one, with regions if its first step is a prepare.
func (s *Server) beginBackup(q control.Backup) error {
	if s.store.Withholds() && !s.backup.holds() || s.fill.job.Source && s.fill.sender != nil {
		return fault.New(fault.Overloaded, "backup", "a copy of the machine is being filled: try again")
	}
	s.dropBackup()
	b := &backup{id: q.ID}
	if q.Step == control.BackupPrepare {
		f, err := os.CreateTemp("", "bifrost-backup-*")
		if err == nil {
			b.regions, err = f, os.Remove(f.Name())
		}
		if err != nil {
			return fault.New(fault.Unavailable, "backup", "the regions cannot be copied: %v", err)
		}
		s.store.Fill()
		b.first, _ = s.store.FillLeft()
	}
	s.backup = b
	return nil
}

// prepareBackup copies some regions. It is ready when little is left, or when clients write
// faster than they are copied.
func (s *Server) prepareBackup() (ready bool, err error) {
	b := s.backup
	if b.made || b.regions == nil {
		return true, nil
	}
	_, err = s.copyRegions(spoolStep)
	left, done := s.store.FillLeft()
	return left <= readyBytes || done > readyRounds*(b.first+readyBytes), err
}

// holdBackup copies ledgers, and what is left of the regions, and holds requests from then
// on.
func (s *Server) holdBackup() error {
	b := s.backup
	if b.made {
		return nil
	}
	if b.regions != nil {
		s.store.CloseFill()
		for more := true; more; {
			var err error
			if more, err = s.copyRegions(spoolStep); err != nil {
				s.dropBackup() // the hold, too
				return err
			}
		}
	}
	b.birth, b.rack, b.incarnation, b.kept, b.made = s.ledgers.birth, s.ledgers.cfg.Rack, s.store.Mirror().Incarnation, s.ledgers.store.Copy(), true
	b.until = time.Now().Add(holdTime)
	time.AfterFunc(holdTime, func() {
		s.mu.Lock()
		defer s.unlock()
		if s.store != nil && s.backup == b {
			s.endHold()
		}
	})
	return nil
}

// copyRegions copies n bytes of regions, or a little more, and reports whether there may be more now.
func (s *Server) copyRegions(n int) (more bool, err error) {
	if fills, _ := s.store.Fills(); !fills {
		return false, fault.New(fault.Overloaded, "backup", "the machine has other copies now: try again")
	}
	buf := make([]byte, 0, n+spoolItem+4)
	for more = true; more && len(buf) < n; {
		var item []byte
		if item, more = s.store.FillNext(spoolItem); more {
			buf = append(binary.BigEndian.AppendUint32(buf, uint32(len(item))), item...) //nolint:gosec // spoolItem at most
		}
	}
	if _, err := s.backup.regions.Write(buf); err != nil {
		return false, fault.New(fault.NoSpace, "backup", "the regions cannot be copied: %v; $TMPDIR of the memory daemon needs room for them", err)
	}
	s.backup.size += int64(len(buf))
	return more, nil
}

// read returns the part of the copy that begins at a place.
func (b *backup) read(at control.BackupPosition) (part control.BackupPart, err error) {
	if !b.made {
		return part, fault.New(fault.BadRequest, "backup", "the copy is not complete")
	}
	if at.Region > 0 {
		return b.readRegions(at)
	}
	if at.Ledger < 0 || at.Ledger > len(b.kept) || at.Chunk < 0 || at.Ledger < len(b.kept) && at.Chunk > len(b.kept[at.Ledger].Chunks) {
		return part, fault.New(fault.BadRequest, "backup", "position %+v lies outside of the copy", at)
	}
	for size := 0; at.Ledger < len(b.kept); at = (control.BackupPosition{Ledger: at.Ledger + 1}) {
		k := &b.kept[at.Ledger]
		content := contentOf(k)
		for ; at.Chunk < len(k.Chunks); at.Chunk++ {
			c := &k.Chunks[at.Chunk]
			cost := len(c.Data) + dsmpacket.ChunkCost
			if size > 0 && size+cost > control.BackupPartSize {
				part.Ledgers, part.Next, part.More = append(part.Ledgers, content), at, true
				return part, nil
			}
			size += cost
			content.Chunks = append(content.Chunks, control.LedgerChunk{Number: c.Number, Continues: c.Continues, Data: c.Data})
		}
		part.Ledgers = append(part.Ledgers, content)
		if size += ledgerNameCost; size > control.BackupPartSize {
			part.Next, part.More = control.BackupPosition{Ledger: at.Ledger + 1}, true
			return part, nil
		}
	}
	if b.size == 0 {
		return part, nil
	}
	if len(part.Ledgers) > 0 {
		part.Next, part.More = at, true
		return part, nil
	}
	return b.readRegions(at)
}

// readRegions returns bytes of the regions' file from a place on.
func (b *backup) readRegions(at control.BackupPosition) (part control.BackupPart, err error) {
	if at.Region > b.size {
		return part, fault.New(fault.BadRequest, "backup", "position %+v lies outside of the copy", at)
	}
	part.Regions = make([]byte, min(control.BackupPartSize, b.size-at.Region))
	if _, err := b.regions.ReadAt(part.Regions, at.Region); err != nil {
		return control.BackupPart{}, fault.New(fault.Unavailable, "backup", "the copy of the regions cannot be read: %v", err)
	}
	at.Region += int64(len(part.Regions))
	part.Next, part.More = at, at.Region < b.size
	return part, nil
}

// ledgerNameCost is what a ledger without chunks is charged with in a part: its JSON.
const ledgerNameCost = 300

func contentOf(k *ledger.Kept) control.LedgerContent {
	return control.LedgerContent{
		Name: control.LedgerName(k.Name), Run: k.Meta.Run, Sealed: k.Meta.Sealed, First: k.Meta.First,
		Writer: control.LedgerWriter(k.Meta.Writer), Granted: control.LedgerWriter(k.Meta.Granted), Owner: k.Meta.Owner,
	}
}

// Restore puts ledgers of a backup into an empty directory, with the birth number and the
// rack that they had. It may be called again with further chunks of the same ledgers. The
// disk has to be closed, and opened again, before a server may have it.
func (d *LedgerDisk) Restore(birth, rack uint64, ledgers []control.LedgerContent) error {
	empty := d.birth == 0 || d.rack == 0 && rack != 0 && len(d.read) == 0 // no rack has had it
	if !empty && (d.birth != birth || d.rack != rack) || d.taken || birth == 0 {
		return fault.New(fault.BadRequest, "restore ledgers", "the directory has ledgers already")
	}
	job := ledgerJob{anew: empty}
	for i := range ledgers {
		c := &ledgers[i]
		name := ledger.Name(c.Name)
		for _, k := range c.Chunks {
			job.changes = append(job.changes, ledger.Change{Name: name, Put: &dsmpacket.Chunk{Number: k.Number, Continues: k.Continues, Data: k.Data}})
		}
		job.changes = append(job.changes, ledger.Change{Name: name, Meta: &ledger.Meta{
			Run: c.Run, Sealed: c.Sealed, Writer: ledger.Writer(c.Writer), Granted: ledger.Writer(c.Granted), First: c.First, Owner: c.Owner,
		}})
	}
	d.birth, d.rack = birth, rack
	return d.store.Commit(func(b *disk.Batch) { write(b, []ledgerJob{job}, birth, rack) })
}
