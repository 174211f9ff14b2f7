package memory

import (
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory/ledger"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/disk"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// A backup needs the ledgers of all memory blades as of one moment: if a node has heard that
// a record is settled, and has told others, the record must be in the backup when theirs are.
// So every blade takes no requests about ledgers from before the first copy is made until
// after the last one is. Nothing is settled meanwhile, so nobody learns of what a copy lacks.

const (
	// holdTime is for how long requests are held at most: a Gatekeeper that ends in between
	// costs the rack no more.
	holdTime = 2 * time.Second
	// backupTime is for how long a copy is kept for a reader that says nothing.
	backupTime = 10 * time.Minute
)

// backup is a copy of the ledgers.
type backup struct {
	id, birth, rack uint64
	kept            []ledger.Kept
	until           time.Time // requests are held until then; zero: they are not
	asked           time.Time // when the reader has last asked for something
}

// holds reports whether requests about ledgers have to wait.
func (l *ledgers) holds() bool {
	return l.backup != nil && !l.backup.until.IsZero() && time.Now().Before(l.backup.until)
}

// forgetBackup drops a copy that nobody reads any more.
func (l *ledgers) forgetBackup() {
	if b := l.backup; b != nil && time.Since(b.asked) > backupTime {
		l.backup = nil
	}
}

// Backup carries out a step of a backup.
func (s *Server) Backup(q control.Backup) (part control.BackupPart, err error) {
	err = s.with(func(*store.Store) error {
		part, err = s.ledgers.step(q)
		if err != nil { // final: it is not to be asked for again
			part, err = control.BackupPart{Outcome: control.Outcome{Code: fault.CodeOf(err), Message: err.Error()}}, nil
		}
		return nil
	})
	return part, err
}

func (l *ledgers) step(q control.Backup) (control.BackupPart, error) {
	now := time.Now()
	if b := l.backup; q.Step == control.BackupHold && (b == nil || b.id != q.ID) {
		l.backup = &backup{id: q.ID, birth: l.birth, rack: l.cfg.Rack, kept: l.store.Copy(), until: now.Add(holdTime)}
	}
	b := l.backup
	if b == nil || b.id != q.ID {
		return control.BackupPart{}, fault.New(fault.NotFound, "backup", "there is no copy of backup %#x", q.ID)
	}
	b.asked = now
	switch q.Step {
	case control.BackupHold:
		return control.BackupPart{Birth: b.birth, Rack: b.rack}, nil
	case control.BackupRelease:
		held := l.holds() && b.birth == l.birth
		if b.until = (time.Time{}); !held {
			return control.BackupPart{}, fault.New(fault.Stale, "backup", "the ledgers were not held until all was copied")
		}
		return control.BackupPart{}, nil
	case control.BackupRead:
		return b.read(q.From)
	case control.BackupDrop:
		l.backup = nil
		return control.BackupPart{}, nil
	}
	return control.BackupPart{}, fault.New(fault.BadRequest, "backup", "step %q", q.Step)
}

// read returns the part of the copy that begins at a place.
func (b *backup) read(at control.BackupPlace) (part control.BackupPart, err error) {
	if at.Ledger < 0 || at.Ledger > len(b.kept) || at.Chunk < 0 || at.Ledger < len(b.kept) && at.Chunk > len(b.kept[at.Ledger].Chunks) {
		return part, fault.New(fault.BadRequest, "backup", "place %+v lies outside of the copy", at)
	}
	for size := 0; at.Ledger < len(b.kept); at = (control.BackupPlace{Ledger: at.Ledger + 1}) {
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
			part.Next, part.More = control.BackupPlace{Ledger: at.Ledger + 1}, true
			return part, nil
		}
	}
	return part, nil
}

// ledgerNameCost is what a ledger without chunks is charged with in a part: its JSON.
const ledgerNameCost = 300

func contentOf(k *ledger.Kept) control.LedgerContent {
	return control.LedgerContent{
		Name: control.LedgerName(k.Name), Run: k.Meta.Run, Sealed: k.Meta.Sealed, First: k.Meta.First,
		Writer: control.LedgerWriter(k.Meta.Writer), Granted: control.LedgerWriter(k.Meta.Granted),
	}
}

// Restore puts ledgers of a backup into an empty directory, with the birth number and the
// rack that they had. It may be called again with further chunks of the same ledgers. The
// disk has to be closed, and opened again, before a server may have it.
func (d *LedgerDisk) Restore(birth, rack uint64, ledgers []control.LedgerContent) error {
	if d.birth != 0 && (d.birth != birth || d.rack != rack) || d.taken || birth == 0 {
		return fault.New(fault.BadRequest, "restore ledgers", "the directory has ledgers already")
	}
	job := ledgerJob{anew: d.birth == 0}
	for i := range ledgers {
		c := &ledgers[i]
		name := ledger.Name(c.Name)
		for _, k := range c.Chunks {
			job.changes = append(job.changes, ledger.Change{Name: name, Put: &dsmpacket.Chunk{Number: k.Number, Continues: k.Continues, Data: k.Data}})
		}
		job.changes = append(job.changes, ledger.Change{Name: name, Meta: &ledger.Meta{
			Run: c.Run, Sealed: c.Sealed, Writer: ledger.Writer(c.Writer), Granted: ledger.Writer(c.Granted), First: c.First,
		}})
	}
	d.birth, d.rack = birth, rack
	return d.store.Commit(func(b *disk.Batch) { write(b, []ledgerJob{job}, birth, rack) })
}
