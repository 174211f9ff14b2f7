package memory

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory/fill"
	"github.com/bifrost-rack/bifrost/dsm/memory/ledger"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/disk"
	"github.com/bifrost-rack/bifrost/internal/disk/disktest"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

const testRack = 5

// restart ends the bench's server and starts one with ledgers on a disk.
func (b *bench) restart(d *LedgerDisk, rack uint64) {
	b.t.Helper()
	b.stop()
	b.start(Config{
		Stack: b.host, Prefix: prefix, Machine: machine, Capacity: 1 << 20,
		Ledgers: LedgerConfig{Space: 1 << 20, Birth: testBirth, Disk: d, Rack: rack},
	})
}

func openDisk(t testing.TB, dir string, o disk.Options) *LedgerDisk {
	t.Helper()
	d, err := openLedgerDisk(dir, o)
	must(t, err)
	return d
}

// write grants node 1 its ledger, opens it, and appends chunks.
func (b *bench) write(from, to uint64) {
	b.t.Helper()
	birth := b.server.Birth()
	_, err := b.server.GrantLedger(control.LedgerGrant{Birth: birth, Name: control.LedgerOf(rackaddr.Node(1)), Node: rackaddr.Node(1), Incarnation: 1})
	must(b.t, err)
	b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerOpen, Run: 1, Birth: birth})
	for n := from; n < to; n++ {
		if a := b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerAppend, Run: 1, Birth: birth, Chunk: chunk(n, text(n))}); a.Status != fault.OK || a.Next != n+1 {
			b.t.Fatalf("append %d: %+v", n, a)
		}
	}
}

func text(n uint64) string { return fmt.Sprintf("chunk %d of %0*d", n, 100, n) }

// kept are the chunks of node 1's ledger.
func (b *bench) kept() (chunks []dsmpacket.Chunk) {
	b.t.Helper()
	chunks, _, _ = b.server.ReadLedger(control.LedgerOf(rackaddr.Node(1)))
	for _, c := range chunks {
		if string(c.Data) != text(c.Number) {
			b.t.Fatalf("chunk %d is %q", c.Number, c.Data)
		}
	}
	return chunks
}

// TestLedgerDisk: a server that starts again has the ledgers that it had, with their birth
// number, and the run that was open goes on; a sealed one is sealed. What a base has cut, or
// was deleted, is gone.
func TestLedgerDisk(t *testing.T) {
	for _, sync := range []bool{false, true} {
		t.Run(fmt.Sprintf("sync=%v", sync), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "ledgers")
			b := newBench(t, 1<<20)
			d := openDisk(t, dir, disk.Options{Sync: sync})
			b.restart(d, testRack)
			b.write(1, 20)
			birth := b.server.Birth()
			again := func() {
				t.Helper()
				b.stop()
				must(t, d.Close())
				d = openDisk(t, dir, disk.Options{Sync: sync})
				b.restart(d, testRack)
				if b.server.Birth() != birth || d.birth != birth {
					t.Fatalf("birth number %#x, before %#x", b.server.Birth(), birth)
				}
			}
			again()
			if n := len(b.kept()); n != 19 {
				t.Fatalf("%d chunks after the restart", n)
			}
			if a := b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerAppend, Run: 1, Birth: birth, Keep: 10, Chunk: chunk(20, text(20))}); a.Status != fault.OK || a.Next != 21 {
				t.Errorf("the open run goes on: %+v", a)
			}
			_, err := b.server.Fence(control.Fence{Node: rackaddr.Node(1), Incarnation: 1})
			must(t, err)
			again()
			if chunks := b.kept(); len(chunks) != 11 || chunks[0].Number != 10 {
				t.Errorf("%d chunks after a base", len(chunks))
			}
			if a := b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerAppend, Run: 1, Chunk: chunk(21, "late")}); a.Status != fault.Stale || !a.Sealed {
				t.Errorf("append to a sealed ledger: %+v", a)
			}
			_, err = b.server.DeleteLedger(control.LedgerDelete{Birth: birth, Name: control.LedgerOf(rackaddr.Node(1))})
			must(t, err)
			again()
			if n := b.server.Ledgers().Count; n != 0 {
				t.Errorf("%d ledgers after the deletion", n)
			}
			b.stop()
			must(t, d.Close())
		})
	}
}

// TestLedgerDisk_Anew: another rack, a memory that begins anew and a server of another
// machine have none of the ledgers, and another birth number; so it is after a restart.
func TestLedgerDisk_Anew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledgers")
	b := newBench(t, 1<<20)
	rack := uint64(testRack)
	for what, next := range map[string]func(d *LedgerDisk){
		"another rack":   func(d *LedgerDisk) { rack++; b.restart(d, rack) },
		"forget":         func(d *LedgerDisk) { rack++; b.restart(d, rack-1); must(t, b.server.Forget(rack)) },
		"another server": func(d *LedgerDisk) { b.restart(d, rack); b.restart(d, rack) },
		"another copy": func(d *LedgerDisk) {
			b.restart(d, rack)
			must(t, b.server.Become(control.Mirror{Epoch: 2, Incarnation: 9, Members: 1}))
		},
	} {
		d := openDisk(t, dir, disk.Options{})
		b.restart(d, rack)
		b.write(1, 5)
		birth := b.server.Birth()
		b.stop()
		must(t, d.Close())
		d = openDisk(t, dir, disk.Options{})
		next(d)
		changed := b.server.Birth()
		if n := len(b.kept()); n != 0 || changed == birth {
			t.Errorf("%s: %d chunks, birth number %#x", what, n, changed)
		}
		b.stop()
		must(t, d.Close())
		d = openDisk(t, dir, disk.Options{})
		b.restart(d, rack)
		if b.server.Birth() != changed || b.server.Ledgers().Count != 0 {
			t.Errorf("%s, after a restart: birth number %#x, was %#x", what, b.server.Birth(), changed)
		}
		b.stop()
		must(t, d.Close())
	}
}

// TestLedgerDisk_Filled: a copy that was filled from another one has that one's ledgers and
// birth number after a restart; one whose filling was cut off has none.
func TestLedgerDisk_Filled(t *testing.T) {
	source := ledger.New(ledger.Config{Birth: 77, Space: 1 << 20, Total: 1 << 20})
	w := ledger.Writer{Node: rackaddr.Node(1), Incarnation: 1}
	source.Grant(ledger.NameOf(w.Node), w, share.Owner{Port: 7, User: 1000})
	source.Open(ledger.NameOf(w.Node), 1, w)
	for n := uint64(1); n < 9; n++ {
		source.Append(ledger.NameOf(w.Node), 1, w, 0, chunk(n, text(n)))
	}
	source.Fill()
	source.CloseFill()
	var items [][]byte
	for item, ok := source.FillNext(1 << 16); ok; item, ok = source.FillNext(1 << 16) {
		items = append(items, item)
	}
	for _, n := range []int{len(items) - 1, len(items)} {
		dir := t.TempDir()
		d := openDisk(t, dir, disk.Options{})
		l, err := newLedgers(LedgerConfig{Disk: d, Birth: 3, Rack: testRack})
		must(t, err)
		l.BeFilled(1)
		for _, item := range items[:n] {
			must(t, l.Take(item))
		}
		l.flush()
		must(t, l.waitForDisk())
		must(t, d.Close())
		d = openDisk(t, dir, disk.Options{})
		l, err = newLedgers(LedgerConfig{Disk: d, Birth: 3, Rack: testRack})
		must(t, err)
		st, there := l.store.Stat(ledger.NameOf(w.Node))
		if all := n == len(items); there != all || all && (l.birth != 77 || st.Next != 9) || !all && l.birth == 77 {
			t.Errorf("after %d of %d items: %v, %+v, birth number %d", n, len(items), there, st, l.birth)
		}
		must(t, d.Close())
	}
}

// TestLedgerDisk_FilledInTime: a copy that was filled says so when its ledgers are on disk. Before, both blades of a machine could
// lose power then: the one that came back first was emptied for the other one, and that had nothing.
func TestLedgerDisk_FilledInTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t, 1<<20)
		m := &disk.Memory{Pause: func() time.Duration { return time.Second }}
		d, err := MemoryLedgerDisk(m)
		must(t, err)
		b.restart(d, testRack)
		must(t, b.server.Fill(control.Fill{Token: 7, Incarnation: 1, From: rackaddr.Blade(2), To: rackaddr.Blade(1), Rate: 1 << 20}))
		source, regions := ledger.New(ledger.Config{Birth: 77, Space: 1 << 20, Total: 1 << 20}), store.New(store.Config{Prefix: prefix, Machine: machine})
		conn, err := b.peer.ListenUDP(netip.AddrPortFrom(rackaddr.Blade(2), rackaddr.PortFill))
		must(t, err)
		defer conn.Close()
		number, acked := uint64(0), atomic.Uint64{}
		send := func(kind fill.Kind, part uint8, item []byte) {
			number++
			p := fill.Packet{Kind: kind, Part: part, Token: 7, Number: number, Data: item}
			_, err := conn.WriteBatch([]netio.Message{{Buf: p.Append(nil), Remote: netip.AddrPortFrom(rackaddr.Blade(1), rackaddr.PortFill)}})
			must(t, err)
		}
		go func() {
			for {
				in := []netio.Message{{Buf: make([]byte, netio.MaxDatagram)}}
				if _, err := conn.ReadBatch(in); err != nil {
					return
				}
				if p, err := fill.Parse(in[0].Buf); err != nil || p.Status != fault.OK {
					t.Errorf("%+v, %v", p, err)
				} else {
					acked.Store(p.Number - 1)
				}
			}
		}()
		for part, from := range []part{&ledgers{store: source}, regions} {
			from.Fill()
			from.CloseFill()
			for item, ok := from.FillNext(1 << 10); ok; item, ok = from.FillNext(1 << 10) {
				send(fill.Item, uint8(part), item) //nolint:gosec // two
			}
		}
		send(fill.Last, 0, binary.BigEndian.AppendUint32(nil, 1))
		<-time.After(time.Second / 2)
		if acked.Load() == number {
			t.Error("the copy is complete, and its ledgers are not on disk")
		}
		<-time.After(10 * time.Second)
		if acked.Load() != number {
			t.Error("the copy is never complete")
		}
	})
}

// TestLedgerDisk_Begin: the number that ledgers begin with is on disk before a server has them. It stays when power fails before any
// rack has the blade, and is another one in another rack.
func TestLedgerDisk_Begin(t *testing.T) {
	m := new(disk.Memory)
	begin := func(drawn, want uint64) *LedgerDisk {
		t.Helper()
		d, err := MemoryLedgerDisk(m)
		must(t, err)
		if birth, err := d.Begin(drawn); birth != want || err != nil {
			t.Errorf("begins with %d, %v, want %d", birth, err, want)
		}
		return d
	}
	serve := func(d *LedgerDisk, rack, want uint64) {
		t.Helper()
		if l, err := newLedgers(LedgerConfig{Disk: d, Birth: d.birth, Rack: rack}); err != nil || l.birth != want {
			t.Fatalf("rack %d: %v, birth number %d, want %d", rack, err, l.birth, want)
		}
	}
	begin(3, 3)
	m.Crash()
	d := begin(4, 3)
	serve(d, testRack, 3)
	serve(d, testRack, 4) // another machine
	m.Crash()
	d = begin(9, 4)
	serve(d, testRack, 4)
	m.Crash()
	serve(begin(9, 4), testRack+1, 5)
	m.Crash()
	serve(begin(9, 5), testRack+1, 5)
}

// crashedLedgers is the directory of a server that was killed when so many chunks had been
// acknowledged.
func crashedLedgers(t *testing.T, chunks uint64, sync bool) string {
	t.Helper()
	dir, crashed := filepath.Join(t.TempDir(), "ledgers"), t.TempDir()
	b := newBench(t, 1<<20)
	d := openDisk(t, dir, disk.Options{Sync: sync})
	b.restart(d, testRack)
	b.write(1, chunks+1)
	must(t, os.CopyFS(crashed, os.DirFS(dir)))
	b.stop()
	must(t, d.Close())
	return crashed
}

// TestLedgerDisk_Damage: a bit that has flipped anywhere, or a file that was cut, never
// takes acknowledged chunks with it unnoticed. The error says what can be done.
func TestLedgerDisk_Damage(t *testing.T) {
	const chunks = 60
	whole := func(dir string) error {
		d, err := OpenLedgerDisk(dir, false)
		if err != nil {
			return err
		}
		defer d.Close()
		l, err := newLedgers(LedgerConfig{Disk: d, Rack: testRack})
		if err != nil {
			return err
		}
		if st, _ := l.store.Stat(ledger.NameOf(rackaddr.Node(1))); st.Next != chunks+1 {
			t.Errorf("%d of %d chunks are left, and no error", st.Next-1, chunks)
		}
		return nil
	}
	for _, sync := range []bool{false, true} {
		dir := crashedLedgers(t, chunks, sync)
		at := t.TempDir()
		must(t, os.CopyFS(at, os.DirFS(dir)))
		must(t, whole(at))
		rng, refused := rand.New(rand.NewPCG(1, 9)), 0
		const cases = 24
		for n := range cases {
			at := t.TempDir()
			must(t, os.CopyFS(at, os.DirFS(dir)))
			names, err := filepath.Glob(filepath.Join(at, "*.log"))
			switch n % 8 {
			case 3:
				names, err = []string{filepath.Join(at, disk.TailName)}, nil
			case 7:
				names, err = filepath.Glob(filepath.Join(at, "MANIFEST-*"))
			}
			must(t, err)
			slices.Sort(names)
			name := names[len(names)-1]
			b, err := os.ReadFile(name)
			must(t, err)
			if n%4 == 2 {
				b = b[:rng.IntN(len(b))]
			} else {
				b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
			}
			must(t, os.Remove(name))
			if n%8 != 7 {
				must(t, os.WriteFile(name, b, 0o600))
			}
			switch err := whole(at); {
			case err == nil:
			case !errors.Is(err, disk.ErrCorrupt) && !errors.Is(err, disk.ErrVersion):
				t.Errorf("refused without a reason: %v", err)
			default:
				if refused++; !strings.Contains(err.Error(), "move the directory away, if the memory machine has another copy") {
					t.Errorf("no remedy: %v", err)
				}
			}
		}
		if refused < cases/2 {
			t.Errorf("%d of %d damaged directories were refused: is anything damaged?", refused, cases)
		}
	}
}

// TestLedgerDisk_PowerLoss: a loss of power takes nothing that was acknowledged from a disk
// that is synced. From one that is not it may take the last chunks, but leaves a ledger that
// is whole.
func TestLedgerDisk_PowerLoss(t *testing.T) {
	for _, sync := range []bool{false, true} {
		fs := vfs.NewStrictMem()
		b := newBench(t, 1<<20)
		must(t, fs.MkdirAll("ledgers", 0o700))
		root, err := fs.OpenDir("/")
		must(t, err)
		must(t, root.Sync())
		d := openDisk(t, "ledgers", disk.Options{FS: fs, Sync: sync, Boot: "first"})
		b.restart(d, testRack)
		b.write(1, 40)
		fs.SetIgnoreSyncs(true) // now the power fails: what follows is of the past
		b.stop()
		must(t, d.Close())
		fs.ResetToSyncedState()
		fs.SetIgnoreSyncs(false)
		d, err = openLedgerDisk("ledgers", disk.Options{FS: fs, Sync: sync, Boot: "second"})
		must(t, err)
		b.restart(d, testRack)
		if n := len(b.kept()); sync && n != 39 {
			t.Errorf("%d of 39 synced chunks are left", n)
		}
		b.stop()
		must(t, d.Close())
	}
}

// TestLedgerDisk_Full: a server whose disk takes nothing any more acknowledges nothing, and
// ends with an error that says why.
func TestLedgerDisk_Full(t *testing.T) {
	fs := disktest.New()
	b := newBench(t, 1<<20)
	d := openDisk(t, "ledgers", disk.Options{FS: fs})
	b.stop()
	server, err := NewServer(Config{
		Stack: b.host, Prefix: prefix, Machine: machine, Capacity: 1 << 20, Ledgers: LedgerConfig{Space: 1 << 20, Disk: d, Rack: testRack},
	})
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(context.Background()) }()
	b.server = server
	b.write(1, 5)
	fs.Full.Store(true)
	if _, err := server.Fence(control.Fence{Node: rackaddr.Node(1), Incarnation: 1}); err == nil {
		t.Error("a fence that is not on disk is acknowledged")
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("the server ends with %v", err)
	}
	_ = d.Close()
}

// TestLedgerDisk_Locked: one process has the directory at a time.
func TestLedgerDisk_Locked(t *testing.T) {
	dir := t.TempDir()
	d := openDisk(t, dir, disk.Options{})
	if _, err := OpenLedgerDisk(dir, false); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("opened twice: %v", err)
	}
	must(t, d.Close())
}

// FuzzLedgerKeys: what stands in a directory of ledgers is read as it was written, or is
// refused.
func FuzzLedgerKeys(f *testing.F) {
	m := ledger.Meta{Run: 1, Sealed: true, Writer: ledger.Writer{Node: rackaddr.Node(1), Incarnation: 1}, First: 1}
	f.Add(metaKey(ledger.Name{1}), appendMeta(nil, &m))
	f.Add(chunkKey(ledger.Name{1}, 7), []byte("\x01text"))
	f.Add([]byte("l/short"), []byte{})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		d := &LedgerDisk{}
		if err := d.entry(disk.Entry{Key: key, Value: value}); err != nil {
			if !errors.Is(err, disk.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		r := d.read[0]
		if len(r.chunks) == 0 {
			if string(metaKey(r.name)) != string(key) || string(appendMeta(nil, &r.meta)) != string(value) {
				t.Fatalf("%x %x became %+v", key, value, r)
			}
			return
		}
		if string(chunkKey(r.name, r.chunks[0].Number)) != string(key) || string(r.chunks[0].Data) != string(value[1:]) || r.chunks[0].Continues != (value[0] == 1) {
			t.Fatalf("%x %x became %+v", key, value, r)
		}
	})
}
