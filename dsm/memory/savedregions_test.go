package memory

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/disk"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// backupStep carries out a step that must have an outcome.
func (b *bench) backupStep(q control.Backup, want fault.Code) control.BackupPart {
	b.t.Helper()
	part, err := b.server.Backup(q)
	if err != nil || part.Code != want {
		b.t.Errorf("%+v: %+v, %v, want %v", q, part.Outcome, err, want)
	}
	return part
}

// TestBackupRegions: a backup has what regions held when it was held, and not what was sent
// then. A server that begins with it has the same content in the same regions, once: the
// next one on the directory has nothing.
func TestBackupRegions(t *testing.T) {
	b := newBench(t, 64<<20)
	reg := b.alloc(4 << 20)
	put := func(at int64, fill byte) {
		b.send(reg.Base.Add(at).With(dsmpacket.OpWrite), 1000, bytes.Repeat([]byte{fill}, 1000))
		if _, h, _ := b.receive(); h.Status != fault.OK {
			t.Fatalf("%+v", h)
		}
	}
	put(3<<20, 1)
	put(5000, 2)
	content := func(at uint64) byte {
		if c, there := b.server.ReadRegion(reg.Base.ID(), at+1); there {
			return c[at]
		}
		return 0xff
	}
	b.backupStep(control.Backup{ID: 7, Step: control.BackupRead}, fault.NotFound)
	if !b.backupStep(control.Backup{ID: 7, Step: control.BackupPrepare}, fault.OK).Ready {
		t.Error("3 MiB are not copied")
	}
	b.backupStep(control.Backup{ID: 7, Step: control.BackupRead}, fault.BadRequest) // it is not complete
	put(5000, 3)                                                                    // is in the rest
	held := b.backupStep(control.Backup{ID: 7, Step: control.BackupHold}, fault.OK)
	b.send(reg.Base.Add(5000).With(dsmpacket.OpWrite), 4, []byte("late")) // dropped
	b.send(reg.Base.With(dsmpacket.OpRead), 4, nil)
	if from, _, _ := b.receive(); from.Op() != dsmpacket.OpRead {
		t.Errorf("while it is held: %s is answered", from)
	}
	b.backupStep(control.Backup{ID: 7, Step: control.BackupRelease}, fault.OK)
	put(5000, 4)
	dir := t.TempDir()
	d, err := OpenLedgerDisk(dir, false)
	must(t, err)
	of := SavedRegions{Rack: 5, Boot: 77, Machine: machine, Incarnation: held.Incarnation}
	must(t, d.Restore(held.Birth, of.Rack, nil))
	for q := (control.Backup{ID: 7, Step: control.BackupRead}); ; {
		part := b.backupStep(q, fault.OK)
		must(t, d.RestoreRegions(of, part.Regions))
		if q.From = part.Next; !part.More {
			break
		}
	}
	b.backupStep(control.Backup{ID: 7, Step: control.BackupDrop}, fault.OK)
	must(t, d.Close())
	b.stop()
	begin := func(rack uint64) (loaded bool) {
		t.Helper()
		d, err := OpenLedgerDisk(dir, false)
		must(t, err)
		if boot := d.Boot(1); boot != 1 && boot != of.Boot {
			t.Errorf("boot number %d", boot)
		}
		b.server, err = NewServer(Config{
			Stack: b.host, Prefix: prefix, Machine: machine, Capacity: 64 << 20, Ledgers: LedgerConfig{Space: 4096, Disk: d, Rack: rack},
		})
		must(t, err)
		loaded, err = b.server.LoadSaved()
		must(t, errors.Join(err, d.Close(), b.server.conn.Close(), b.server.fill.conn.Close()))
		return loaded
	}
	file, err := os.ReadFile(dir + "/regions")
	must(t, err)
	// The power goes after the regions were loaded, and before their file is removed: nobody has
	// had an answer, and the next start has them.
	open := func(capacity uint64) (*LedgerDisk, *Server) {
		t.Helper()
		d, err := OpenLedgerDisk(dir, false)
		must(t, err)
		s, err := NewServer(Config{
			Stack: b.host, Prefix: prefix, Machine: machine, Capacity: capacity, Ledgers: LedgerConfig{Space: 4096, Disk: d, Rack: of.Rack},
		})
		must(t, err)
		return d, s
	}
	d, s := open(64 << 20)
	must(t, errors.Join(s.now(func(*store.Store) error { return s.load(d) }), d.Close(), s.conn.Close(), s.fill.conn.Close()))
	// A smaller server says so, serves nothing of them, and leaves them to a larger one.
	d, s = open(1 << 20)
	loaded, err := s.LoadSaved()
	if loaded || fault.CodeOf(err) != fault.NoSpace || !strings.Contains(err.Error(), "do not fit") {
		t.Errorf("with less capacity: %v, %v", loaded, err)
	}
	must(t, errors.Join(d.Close(), s.conn.Close(), s.fill.conn.Close()))
	if !begin(of.Rack) || content(3<<20) != 1 || content(5000) != 3 || b.server.Used() != 4<<20 {
		t.Errorf("restored: %d, %d; %d bytes are in use", content(3<<20), content(5000), b.server.Used())
	}
	if g := b.server.Generation(); g < reg.Base.ID().Generation() {
		t.Errorf("generation %d, and there is region %s", g, reg.Base)
	}
	if begin(of.Rack) {
		t.Error("a second start has the regions again")
	}
	must(t, os.WriteFile(dir+"/regions", file, 0o600))
	if begin(of.Rack + 1) {
		t.Error("another rack has the regions")
	}
}

// TestBackupBesideFilling: a copy that begins to be filled drops a backup that is being made, and
// leaves one alone that is complete.
func TestBackupBesideFilling(t *testing.T) {
	for step, want := range map[string]fault.Code{control.BackupPrepare: fault.NotFound, control.BackupHold: fault.NotFound, control.BackupRelease: fault.OK} {
		b := newBench(t, 1<<20)
		b.alloc(64)
		for _, s := range []string{control.BackupPrepare, control.BackupHold, control.BackupRelease} {
			if b.backupStep(control.Backup{ID: 1, Step: s}, fault.OK); s == step {
				break
			}
		}
		must(t, b.server.Fill(control.Fill{Token: 1, Source: true, From: rackaddr.Blade(1), To: rackaddr.Blade(2), Rate: 1 << 20}))
		b.backupStep(control.Backup{ID: 1, Step: control.BackupRead}, want)
	}
}

// TestSavedRegionsRefused: a file of regions that is cut off or damaged is refused, and stays.
func TestSavedRegionsRefused(t *testing.T) {
	b := newBench(t, 1<<20)
	b.alloc(64)
	b.backupStep(control.Backup{ID: 1, Step: control.BackupPrepare}, fault.OK)
	b.backupStep(control.Backup{ID: 1, Step: control.BackupHold}, fault.OK)
	part := b.backupStep(control.Backup{ID: 1, Step: control.BackupRead}, fault.OK)
	must(t, b.server.Forget(1)) // the copy is still there, and the hold is not
	b.backupStep(control.Backup{ID: 1, Step: control.BackupRelease}, fault.Stale)
	of := SavedRegions{Boot: 77, Machine: machine}
	for n := 0; n < len(part.Regions); n += 7 {
		dir := t.TempDir()
		must(t, os.WriteFile(dir+"/regions", nil, 0o600))
		d := &LedgerDisk{directory: dir, saved: nil}
		must(t, d.RestoreRegions(of, part.Regions[:n]))
		must(t, d.regions.Close())
		s := &Server{cfg: Config{Machine: machine, Ledgers: LedgerConfig{Disk: d}}, store: store.New(store.Config{Prefix: prefix, Machine: machine, Memory: make([]byte, 1<<20)})}
		if _, err := s.LoadSaved(); !errors.Is(err, disk.ErrCorrupt) {
			t.Errorf("%d of %d bytes: %v", n, len(part.Regions), err)
		}
		if _, err := os.Stat(dir + "/regions"); err != nil {
			t.Error(err)
		}
	}
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/regions", []byte("bifrost regions 1\n and a lot of what nobody knows"), 0o600))
	if _, err := OpenLedgerDisk(dir, false); !errors.Is(err, disk.ErrCorrupt) {
		t.Errorf("of another format: %v", err)
	}
}
