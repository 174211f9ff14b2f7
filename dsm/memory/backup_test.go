package memory

import (
	"bytes"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// TestBackup: a server that holds its ledgers for a backup answers nothing about them until it
// has released them. The copy is read in parts, and is what was there; on a disk it is the
// same again.
func TestBackup(t *testing.T) {
	b := newBench(t, 1<<20)
	b.stop()
	b.start(Config{Stack: b.host, Prefix: prefix, Machine: machine, Capacity: 1 << 20, Ledgers: LedgerConfig{Space: 1 << 20, Birth: testBirth}})
	name := control.LedgerOf(rackaddr.Node(1))
	if _, err := b.server.GrantLedger(control.LedgerGrant{Birth: testBirth, Name: name, Node: rackaddr.Node(1), Incarnation: 1}); err != nil {
		t.Fatal(err)
	}
	b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerOpen, Run: 1, Birth: testBirth})
	appended := func(n uint64) dsmpacket.LedgerRequest {
		return dsmpacket.LedgerRequest{Op: dsmpacket.LedgerAppend, Run: 1, Birth: testBirth, Chunk: dsmpacket.Chunk{Number: n, Data: bytes.Repeat([]byte{byte(n)}, 50_000)}}
	}
	const chunks = 15 // more than a part has
	for n := range uint64(chunks) {
		b.ask(appended(n + 1))
	}
	step := func(id uint64, step string, want fault.Code) control.BackupPart {
		t.Helper()
		part, err := b.server.Backup(control.Backup{ID: id, Step: step})
		if err != nil || part.Code != want {
			t.Errorf("%s: %+v, %v, want %v", step, part.Outcome, err, want)
		}
		return part
	}
	step(7, control.BackupRead, fault.NotFound)
	held := step(7, control.BackupHold, fault.OK)
	late := appended(chunks + 1)
	late.Ledger, late.Incarnation = rackaddr.Node(1).As16(), 1
	b.raw(dsmpacket.LedgerAddress(prefix, machine, late.Op), late.Append(nil))
	b.alloc(64) // behind it, and answered first
	if a, err := b.server.ListLedgers(control.Ledgers{}); err != nil || a.Ledgers[0].Next != chunks+1 {
		t.Errorf("while it is held: %+v, %v", a, err)
	}
	step(7, control.BackupRelease, fault.OK)
	if a := b.ask(appended(chunks + 1)); a.Next != chunks+2 {
		t.Errorf("after the release: %+v", a)
	}
	dir, parts := t.TempDir(), 0
	d, err := OpenLedgerDisk(dir, false)
	must(t, err)
	for q := (control.Backup{ID: 7, Step: control.BackupRead}); ; parts++ {
		part, err := b.server.Backup(q)
		must(t, err)
		must(t, d.Restore(held.Birth, held.Rack, part.Ledgers))
		if q.From = part.Next; !part.More {
			break
		}
	}
	must(t, d.Close())
	d, err = OpenLedgerDisk(dir, false)
	must(t, err)
	if parts == 0 || d.birth != testBirth || len(d.read) != 1 || len(d.read[0].chunks) != chunks || d.read[0].meta.Run != 1 {
		t.Errorf("%d parts, restored with birth number %d: %d ledgers", parts+1, d.birth, len(d.read))
	}
	if err := d.Restore(held.Birth+1, 0, nil); fault.CodeOf(err) != fault.BadRequest {
		t.Errorf("a second restore: %v", err)
	}
	must(t, d.Close())
	step(8, control.BackupHold, fault.OK)
	b.server.mu.Lock()
	b.server.endHold() // it has lasted too long
	b.server.mu.Unlock()
	step(8, control.BackupRelease, fault.Stale)
	step(8, control.BackupDrop, fault.OK)
	step(8, control.BackupRead, fault.NotFound)
}
