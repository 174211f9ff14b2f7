package simrack_test

import (
	"bytes"
	"context"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	server "github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/gatekeeper/backup"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// onDisks restores a backup for a simulated rack.
type onDisks struct {
	t   *testing.T
	log *wal.Log
	dir string
}

func (d onDisks) Manifest(m backup.Manifest) error {
	if len(m.Blades) != 2 {
		d.t.Errorf("ledgers of %v", m.Blades)
	}
	return nil
}

func (d onDisks) Record(r wal.Record) error {
	var b wal.Batch
	b.Put(r)
	return d.log.Append(context.Background(), &b)
}

func (d onDisks) Ledgers(of backup.Blade, ledgers []control.LedgerContent) error {
	disk, err := server.OpenLedgerDisk(filepath.Join(d.dir, of.Name), false)
	if err != nil {
		return err
	}
	defer disk.Close()
	return disk.Restore(of.Birth, of.Rack, ledgers)
}

// TestBackup: a backup is made while calls go on, each of which raises the counter of S through R. A fresh
// rack has all calls that were answered before the backup, and goes on from there; so does the old one.
func TestBackup(t *testing.T) {
	withRegisters(t, "", func(ctx context.Context, r *registers) {
		n := r.client(ctx, t)
		const before, meanwhile = 6, 20
		for range before {
			if _, err := echo(ctx, n, "R", "S "); err != nil {
				t.Fatal(err)
			}
		}
		var calls sync.WaitGroup
		for range 4 {
			calls.Go(func() {
				for range meanwhile / 4 {
					if _, err := echo(ctx, n, "R", "S "); err != nil {
						t.Error(err)
					}
				}
			})
		}
		var file bytes.Buffer
		b, err := r.Gatekeeper().Backup(ctx)
		if err == nil {
			err = b.Write(ctx, &file)
		}
		if err != nil {
			t.Fatal(err)
		}
		calls.Wait()
		if got, err := echo(ctx, n, "S", ""); err != nil || got != before+meanwhile+1 {
			t.Errorf("the rack itself goes on: %d, %v", got, err)
		}
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
		restored := r.restored(ctx, t, file.Bytes())
		n = restored.client(ctx, t)
		first, err := echo(ctx, n, "S", "")
		if err != nil || first <= before || first > before+meanwhile+1 {
			t.Errorf("S has counted to %d in the restored rack, %v", first, err)
		}
		if again, err := echo(ctx, n, "R", "S "); err != nil || again != first+1 {
			t.Errorf("then to %d, %v", again, err)
		}
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := restored.Close(); err != nil {
			t.Error(err)
		}
		for cut := range 3 { // a file that is cut off is refused
			if err := backup.Read(bytes.NewReader(file.Bytes()[:file.Len()*cut/3]), discard{}); err == nil {
				t.Errorf("%d thirds of the file are read as a whole", cut)
			}
		}
	})
}

// discard takes everything.
type discard struct{}

func (discard) Manifest(backup.Manifest) error                      { return nil }
func (discard) Record(wal.Record) error                             { return nil }
func (discard) Ledgers(backup.Blade, []control.LedgerContent) error { return nil }

// restored is a fresh rack that begins with a backup of this one.
func (r *registers) restored(ctx context.Context, t *testing.T, file []byte) *registers {
	t.Helper()
	to := &registers{nodes: map[string]*rpc.Node{}}
	cfg := to.config(t.TempDir())
	l, err := wal.OpenMemory(cfg.Disk, wal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := backup.Read(bytes.NewReader(file), onDisks{t, l, cfg.LedgerDir}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Minute) // virtual
	if to.Rack, err = simrack.Start(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return to
}
