package simrack_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	server "github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/backup"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
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

func (d onDisks) Regions(of backup.Blade, part []byte) error {
	disk, err := server.OpenLedgerDisk(filepath.Join(d.dir, of.Name), false)
	if err != nil {
		return err
	}
	return errors.Join(disk.RestoreRegions(server.SavedRegions{Rack: of.Rack, Boot: of.Boot, Machine: of.Machine, Incarnation: of.Incarnation}, part), disk.Close())
}

// TestBackup: a backup is made while calls go on, each of which raises the counter of S through R. A fresh
// rack has all calls that were answered before the backup, and goes on from there; so does the old one.
func TestBackup(t *testing.T) {
	if testing.Short() {
		t.Skip("TestBackupMemory makes one under the race detector")
	}
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
func (discard) Regions(backup.Blade, []byte) error                  { return nil }

// restored is a fresh rack that begins with a backup of this one.
func (r *registers) restored(ctx context.Context, t *testing.T, file []byte) *registers {
	t.Helper()
	to := &registers{nodes: map[string]*rpc.Node{}}
	to.Rack = restored(ctx, t, file, to.config(t.TempDir()))
	return to
}

// restored starts a rack that begins with a backup.
func restored(ctx context.Context, t *testing.T, file []byte, cfg simrack.Config) *simrack.Rack {
	t.Helper()
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
	r, err := simrack.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// account is a service with state, which is a pointer to where it counts: Echo adds one, and
// returns the sum. Its region has more than a part of a backup.
type account struct {
	service.Arrays
	at dsm.Pointer
}

const accountSize, accountAt = 1 << 20, 700_000

func (a *account) Echo(ctx context.Context, _ []byte) ([]byte, error) {
	m, sum := rpc.Memory(ctx), make([]byte, 8)
	if a.at == (dsm.Pointer{}) {
		at, err := m.Alloc(ctx, accountSize)
		if err == nil {
			_, err = m.Write(ctx, at, bytes.Repeat([]byte{0xb1}, accountAt))
		}
		if err != nil {
			return nil, err
		}
		a.at = at
	}
	if _, err := m.Read(ctx, a.at.Add(accountAt), sum); err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint64(sum, binary.BigEndian.Uint64(sum)+1)
	_, err := m.Write(ctx, a.at.Add(accountAt), sum)
	return sum, err
}

func (a *account) Snapshot() ([]byte, error) { return bytes.Clone(a.at[:]), nil }
func (a *account) Restore(b []byte) error    { copy(a.at[:], b); return nil }

// TestBackupMemory: a service whose state is a pointer, and a durable main that keeps one
// beside its checkpoints, go on in a fresh rack with what their regions held, and each call
// has counted once. The backup is made while the main works. Memory machines have two copies,
// or one.
func TestBackupMemory(t *testing.T) {
	for name, machines := range map[string][][]string{"mirrored": {{"m1", "m2"}}, "single": nil} {
		if testing.Short() && machines == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				b := newVault(t, machines)
				rack, err := simrack.Start(ctx, b.cfg)
				if err != nil {
					t.Fatal(err)
				}
				if err := rack.Gatekeeper().Deploy(ctx, vaultSpec()); err != nil {
					t.Fatal(err)
				}
				b.wait(ctx, vaultBegun)
				var file bytes.Buffer
				b.beBusy(ctx, true)
				saved, err := rack.Gatekeeper().Backup(ctx)
				b.beBusy(ctx, false)
				at := b.now()
				if err == nil {
					err = saved.Write(ctx, &file)
				}
				if err != nil {
					t.Fatal(err)
				}
				b.end(at + vaultBegun)
				b.wait(ctx, at+vaultBegun)
				if err := rack.Close(); err != nil {
					t.Error(err)
				}
				again := newVault(t, machines)
				again.end(at + vaultBegun)
				fresh := restored(ctx, t, file.Bytes(), again.cfg)
				again.wait(ctx, at+vaultBegun)
				if began := again.began; began < vaultBegun || began > at+1 {
					t.Errorf("the main begins with round %d again, the backup was made in %d", began, at)
				}
				n, err := fresh.Join(ctx, "c1", "client")
				if err != nil {
					t.Fatal(err)
				}
				if sum, err := echo(ctx, n, "A", ""); err != nil || sum != uint64(at+vaultBegun+1) {
					t.Errorf("the account has %d after %d calls, %v", sum, at+vaultBegun+1, err)
				}
				if err := errors.Join(n.Close(ctx), fresh.Close()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestBackupBladeDies: a memory blade dies in the middle of a backup, at moments of every step. The backup
// is made, or fails with a code that says why, and holds nobody up: the main goes on. When the blade is back the
// next backup is made, and a rack restored from it has counted each call once.
func TestBackupBladeDies(t *testing.T) {
	if testing.Short() {
		t.Skip("TestBackupMemory makes a backup under the race detector, TestFillUnderLoad kills blades")
	}
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		machines := [][]string{{"m1", "m2"}}
		b := newVault(t, machines)
		rack, err := simrack.Start(ctx, b.cfg)
		if err == nil {
			err = rack.Gatekeeper().Deploy(ctx, vaultSpec())
		}
		if err != nil {
			t.Fatal(err)
		}
		b.wait(ctx, vaultBegun)
		save := func(file *bytes.Buffer) error {
			saved, err := rack.Gatekeeper().Backup(ctx)
			if err != nil {
				return err
			}
			return saved.Write(ctx, file)
		}
		failed, made := 0, 0
		for k, after := range []time.Duration{2, 10, 20, 30} { // a backup takes some 50 ns (virtual), unless somebody is in its way
			dies := machines[0][k%2]
			ended := make(chan error, 1)
			b.beBusy(ctx, true)
			go func() { ended <- save(new(bytes.Buffer)) }()
			<-time.After(after) // virtual
			if err := rack.KillDaemon(dies); err != nil {
				t.Fatal(err)
			}
			b.beBusy(ctx, false)
			killed, round := time.Now(), b.now()
			b.wait(ctx, round+3)
			err := <-ended
			if took := time.Since(killed); took > 3*time.Second { // three heartbeats
				t.Errorf("the backup and the main have waited %v for %s", took, dies)
			}
			switch {
			case err == nil:
				made++
			case rpc.CodeOf(err) == rpc.Unavailable || rpc.CodeOf(err) == rpc.Overloaded:
				failed++
			default:
				t.Errorf("%s dies after %v: %v", dies, after, err)
			}
			if err := rack.BootBlade(dies); err != nil {
				t.Fatal(err)
			}
			untilMirrored(t, ctx, rack)
		}
		if failed < 2 {
			t.Errorf("%d backups failed, %d were made: the blades do not die in the middle", failed, made)
		}
		var file bytes.Buffer
		if err := save(&file); err != nil {
			t.Fatal(err)
		}
		if err := rack.Close(); err != nil {
			t.Error(err)
		}
		last := b.now() + vaultBegun
		again := newVault(t, machines)
		again.end(last)
		fresh := restored(ctx, t, file.Bytes(), again.cfg)
		again.wait(ctx, last)
		n, err := fresh.Join(ctx, "c1", "client")
		if err != nil {
			t.Fatal(err)
		}
		if sum, err := echo(ctx, n, "A", ""); err != nil || sum != uint64(last+1) {
			t.Errorf("the account has %d after %d calls, %v", sum, last+1, err)
		}
		if err := errors.Join(n.Close(ctx), fresh.Close()); err != nil {
			t.Error(err)
		}
	})
}

// vaultBegun is how many calls the main has made when the backup begins, and how many it makes
// when it is done.
const vaultBegun = 10

// vault is a rack with an account, and a main that calls it.
type vault struct {
	cfg   simrack.Config
	t     *testing.T
	mu    sync.Mutex
	round int // that the main has ended
	began int // with which it has begun last
	last  int // the main ends with it; 0: it goes on
	busy  bool
	news  chan struct{} // closed with each round
}

func vaultSpec() resources.Spec {
	return resources.Spec{Name: "vault", Programs: []resources.Program{
		{Name: "A", Args: []string{"A"}, Nodes: 1, Blades: []string{"s1", "s2"}, Services: []resources.ServiceSpec{{Name: "A", Stateful: true}}},
		{Name: "main", Args: []string{"main"}, Nodes: 1, Job: true, Blades: []string{"c1"}},
	}}
}

func newVault(t *testing.T, machines [][]string) *vault {
	b := &vault{t: t, news: make(chan struct{})}
	b.cfg = (&registers{}).config(t.TempDir())
	b.cfg.Machines, b.cfg.Programs = machines, map[string]simrack.Program{"A": b.account, "main": b.main}
	return b
}

// end has the main end after a round.
func (b *vault) end(last int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = last
}

func (b *vault) over(round int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last > 0 && round >= b.last
}

func (b *vault) now() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.round
}

// wait waits until the main has made so many rounds.
func (b *vault) wait(ctx context.Context, rounds int) {
	b.t.Helper()
	for {
		b.mu.Lock()
		now, news := b.round, b.news
		b.mu.Unlock()
		if now >= rounds {
			return
		}
		select {
		case <-news:
		case <-ctx.Done():
			b.t.Fatalf("the main has made %d rounds, not %d", now, rounds)
		}
	}
}

// beBusy has the main make its rounds without a pause, or with one of a millisecond (virtual): packets take no
// time here. It returns when the main does so.
func (b *vault) beBusy(ctx context.Context, busy bool) {
	b.mu.Lock()
	b.busy = busy
	next := b.round + 1
	b.mu.Unlock()
	if busy {
		b.wait(ctx, next)
	}
}

// made counts a round, and returns how long the main pauses.
func (b *vault) made(round int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.round = round
	close(b.news)
	b.news = make(chan struct{})
	if b.busy {
		return 0
	}
	return time.Millisecond
}

func (b *vault) account(ctx context.Context, j join.Joiner, s control.Start) error {
	node, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(s.Name))
	if err != nil {
		return err
	}
	a := &account{}
	if err := node.Export(ctx, "A", arrays.NewArraysProcessor(a), rpc.WithState(a)); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// main counts its rounds in a region, whose pointer is in its checkpoints.
func (b *vault) main(ctx context.Context, j join.Joiner, s control.Start) error {
	node, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(s.Name))
	if err != nil {
		return err
	}
	err = rpc.Main(ctx, node, "main", func(ctx context.Context, state []byte) (err error) {
		m, count := rpc.Memory(ctx), make([]byte, 8)
		var at dsm.Pointer
		if copy(at[:], state) == 0 {
			if at, err = m.Alloc(ctx, 4096); err != nil {
				return err
			}
		} else if _, err := m.Read(ctx, at, count); err != nil {
			return err
		}
		round := int(binary.BigEndian.Uint64(count))
		b.mu.Lock()
		b.began = round
		b.mu.Unlock()
		for ; !b.over(round); round++ {
			if _, err := echo(ctx, node, "A", ""); err != nil {
				return err
			}
			if _, err := m.Write(ctx, at, binary.BigEndian.AppendUint64(nil, uint64(round)+1)); err != nil {
				return err
			}
			if err := rpc.Checkpoint(ctx, at[:]); err != nil {
				return err
			}
			<-time.After(b.made(round + 1)) // virtual
		}
		return nil
	})
	return errors.Join(err, node.Close(ctx))
}
