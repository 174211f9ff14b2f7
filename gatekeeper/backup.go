package gatekeeper

import (
	"context"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/backup"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// A backup has the log, all ledgers and all regions as of one moment. A restored rack goes on as if
// the whole rack had lost its power at that moment, and the log and the memory blades had kept
// their content.
//
//	Gatekeeper                      every memory blade            nodes
//	  │── prepare, prepare, … ──────▶│ copies regions               │── write, append ──▶ taken
//	  │── hold ─────────────────────▶│ copies its ledgers, the rest │── write, append ──▶ dropped, sent again
//	  │ all have answered: the switch's registers are read          │
//	  │ the log is copied                                           │
//	  │── release ──────────────────▶│                              │── write, append ──▶ taken
//	  │── read, read, … ────────────▶│ of the copy                  │
//
// While memory is held, nothing is settled in it. So nobody has acted upon a record or a
// write that a copy lacks. Each command to a blade was logged before the log was copied.
// Of a machine with two copies only the first one's regions are saved: it has all that was
// settled. The other blade is filled from it in the restored rack.

// backupPatience is how long a blade may take to answer a step of a backup.
const backupPatience = 10 * time.Second

// backupPause is after how long a backup is tried again that met the filling of a copy, and how
// often it is looked whether a blade is in service whose answer is awaited.
const backupPause = 100 * time.Millisecond

// Backup is a backup that has been made, and is to be written. Its methods are called one at
// a time.
type Backup struct {
	g        *Gatekeeper
	id       uint64
	manifest backup.Manifest
	next     func() (wal.Record, error, bool) // the log as it was
	image    []wal.Record                     // of the switch's registers
	stop     func()
}

// Backup makes a backup of the log, of all ledgers and of all regions, while the rack works; who needs
// a ledger, or changes a region, waits for some milliseconds. The caller must Write it. It fails as Unsupported if there is no log, as Unavailable
// if a memory blade does not answer or loses its content meanwhile, as Overloaded if one fills another one for longer than
// 10 s; then it may be tried again.
func (g *Gatekeeper) Backup(ctx context.Context) (*Backup, error) {
	if g.cfg.Store == nil {
		return nil, fault.New(fault.Unsupported, "backup", "the Gatekeeper has no log to save: start it with --log")
	}
	for began := time.Now(); ; {
		b := &Backup{g: g, id: rand.Uint64()}
		if err := g.do(ctx, func() { b.manifest = g.ctl.backupOf(g.ctl.began) }); err != nil {
			return nil, err
		}
		err := b.copyAll(ctx)
		if err == nil {
			return b, nil
		}
		b.drop(ctx)
		if fault.CodeOf(err) != fault.Overloaded || time.Since(began) > backupPatience {
			return nil, err
		}
		select {
		case <-time.After(backupPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// backupOf is what a backup of this moment is of.
func (p *population) backupOf(began uint64) backup.Manifest {
	m := backup.Manifest{Release: control.ThisRelease(), Rack: began}
	for _, b := range p.sortedBlades() {
		if b.memory() && b.alive() && b.holds() {
			m.Blades = append(m.Blades, backup.Blade{Name: b.hello.Blade, Machine: b.hello.Machine, Boot: b.hello.Boot, Regions: b.first()})
		}
	}
	return m
}

// copyAll has all blades copy their ledgers, and copies the log while they hold them.
func (b *Backup) copyAll(ctx context.Context) error {
	if err := b.prepare(ctx); err != nil {
		return err
	}
	parts, err := b.step(ctx, control.BackupHold)
	if err != nil {
		return err
	}
	for i := range parts {
		of := &b.manifest.Blades[i]
		of.Birth, of.Rack, of.Incarnation = parts[i].Birth, parts[i].Rack, parts[i].Incarnation
	}
	if err := b.copyRegisters(ctx); err != nil {
		return err
	}
	var first wal.Record
	var some bool
	next, stop := iter.Pull2(b.g.cfg.Store.Records())
	first, err, some = next() // from here on it does not change
	b.manifest.Time, b.stop = time.Now(), stop
	b.next = func() (wal.Record, error, bool) {
		b.next = next
		return first, err, some
	}
	if err != nil {
		return err
	}
	_, err = b.step(ctx, control.BackupRelease)
	return err
}

// copyRegisters copies the switch's registers.
func (b *Backup) copyRegisters(ctx context.Context) error {
	i, err := b.g.saw(ctx)
	if err != nil {
		return err
	}
	b.image = i.saved()
	return b.g.do(ctx, func() {
		b.manifest.Regions, b.manifest.Lacks = b.g.ctl.ownedIn(i, func(machine uint8) bool {
			return slices.ContainsFunc(b.manifest.Blades, func(m backup.Blade) bool { return m.Regions && m.Machine == machine })
		})
	})
}

// prepare has all blades copy their regions, but for what changes meanwhile.
func (b *Backup) prepare(ctx context.Context) error {
	for ready := false; !ready; {
		parts, err := b.step(ctx, control.BackupPrepare)
		if err != nil {
			return err
		}
		ready = true
		for i := range parts {
			ready = ready && (parts[i].Ready || !b.manifest.Blades[i].Regions)
		}
	}
	return nil
}

// step asks all blades for a step at once, and returns their answers. Those whose regions are not saved
// have nothing to prepare.
func (b *Backup) step(ctx context.Context, step string) ([]control.BackupPart, error) {
	parts := make([]control.BackupPart, len(b.manifest.Blades))
	answers := make([]<-chan backupAnswer, len(parts))
	for i := range parts {
		if step == control.BackupPrepare && !b.manifest.Blades[i].Regions {
			continue
		}
		answers[i] = b.ask(ctx, b.manifest.Blades[i].Name, control.Backup{ID: b.id, Step: step})
	}
	for i, a := range answers {
		if a == nil {
			continue
		}
		var err error
		if parts[i], err = b.await(ctx, b.manifest.Blades[i].Name, a); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// backupAnswer is a blade's answer to a step.
type backupAnswer struct {
	part control.BackupPart
	err  error
}

// ask asks a blade for a step.
func (b *Backup) ask(ctx context.Context, blade string, q control.Backup) <-chan backupAnswer {
	answer := make(chan backupAnswer, 1)
	err := b.g.query(ctx, func(c *controller) error {
		if err := b.inService(c, blade); err != nil {
			return err
		}
		return c.blades[blade].port.ask(c.now, control.KindBackup, q, func(m control.Message) {
			var a backupAnswer
			if m.Status != fault.OK {
				a.err = fault.Remote(m.Status, "backup", "memory blade %s: %s", blade, m.Body)
			} else if a.err = m.Decode(&a.part); a.err == nil && a.part.Code != fault.OK {
				code := fault.Unavailable
				if a.part.Code == fault.Overloaded || a.part.Code == fault.NotFound { // a copy has begun to be filled
					code = fault.Overloaded
				}
				a.err = fault.New(code, "backup", "memory blade %s: %s", blade, a.part.Message)
			}
			answer <- a
		})
	})
	if err != nil {
		answer <- backupAnswer{err: err}
	}
	return answer
}

// await waits for a blade's answer, as long as the blade that was asked is in service: the others
// hold what they have meanwhile.
func (b *Backup) await(ctx context.Context, blade string, answer <-chan backupAnswer) (control.BackupPart, error) {
	ctx, cancel := context.WithTimeout(ctx, backupPatience)
	defer cancel()
	look := time.NewTicker(backupPause)
	defer look.Stop()
	for {
		select {
		case a := <-answer:
			return a.part, a.err
		case <-look.C:
			if err := b.g.query(ctx, func(c *controller) error { return b.inService(c, blade) }); err != nil {
				return control.BackupPart{}, err
			}
		case <-ctx.Done():
			return control.BackupPart{}, fault.New(fault.Unavailable, "backup", "memory blade %s has not answered: %v", blade, ctx.Err())
		}
	}
}

// inService fails if a blade is not the one any more of which the backup is.
func (b *Backup) inService(c *controller, blade string) error {
	of := c.blades[blade]
	same := func(m backup.Blade) bool { return m.Name == blade && m.Boot == of.hello.Boot }
	if of == nil || !of.alive() || !slices.ContainsFunc(b.manifest.Blades, same) {
		return fault.New(fault.Unavailable, "backup", "memory blade %s is not in service any more", blade)
	}
	return nil
}

// Write writes the backup (package backup has the format), and forgets it.
func (b *Backup) Write(ctx context.Context, to io.Writer) error {
	defer b.drop(ctx)
	w, err := backup.NewWriter(to, b.manifest)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		r, err, more := b.next()
		if !more {
			break
		}
		if err == nil {
			err = w.Record(&r)
		}
		if err != nil {
			return err
		}
	}
	for i := range b.image {
		if err := w.Record(&b.image[i]); err != nil {
			return err
		}
	}
	for i := range b.manifest.Blades {
		if err := b.writeBlade(ctx, w, b.manifest.Blades[i].Name); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return w.Close()
}

// writeBlade reads a blade's copy.
func (b *Backup) writeBlade(ctx context.Context, w *backup.Writer, blade string) error {
	q := control.Backup{ID: b.id, Step: control.BackupRead}
	for more := true; more; {
		part, err := b.await(ctx, blade, b.ask(ctx, blade, q))
		switch {
		case err != nil:
		case len(part.Regions) > 0:
			err = w.Regions(blade, part.Regions)
		default:
			err = w.Ledgers(blade, part.Ledgers)
		}
		if err != nil {
			return err
		}
		q.From, more = part.Next, part.More
	}
	return nil
}

// drop has the blades forget their copies, and release what they hold. One that does not
// hear of it forgets by itself.
func (b *Backup) drop(ctx context.Context) {
	if b.stop != nil {
		b.stop()
	}
	for i := range b.manifest.Blades {
		_ = b.ask(context.WithoutCancel(ctx), b.manifest.Blades[i].Name, control.Backup{ID: b.id, Step: control.BackupDrop})
	}
}
